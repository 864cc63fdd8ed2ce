package buildinfo_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const program = `package main

import (
	"fmt"

	"github.com/cloudfn/cloudfn/shared/buildinfo"
)

func main() { fmt.Print(buildinfo.Version()) }
`

// TestVersion builds a program with and without the linker's flag that make build sets.
func TestVersion(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp(".", "testdata-") // inside the module, whose packages it imports
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	flag := "-X github.com/cloudfn/cloudfn/shared/buildinfo.version=v1.2.3"
	if got := output(t, "go", "run", "-ldflags", flag, "./"+dir); got != "v1.2.3" {
		t.Errorf("with the flag the version is %q", got)
	}
	if got := output(t, "go", "run", "./"+dir); got == "" {
		t.Error("without the flag there is no version")
	}
}

// TestGitDescribe runs scripts/version in a repository without tags, in one with a tag, and outside of any.
func TestGitDescribe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, err := os.ReadFile("../../scripts/version")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "scripts"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "scripts", "version")
	if err := os.WriteFile(path, script, 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	git := func(args ...string) string {
		as := []string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.com"}
		return output(t, "git", append(as, args...)...)
	}
	if got := output(t, path); got != "" {
		t.Errorf("outside a repository it prints %q", got)
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "first")
	if got, want := output(t, path), git("rev-parse", "--short", "HEAD"); got != want {
		t.Errorf("without tags it prints %q, want %q", got, want)
	}
	git("tag", "v0.1.0")
	git("tag", "before-house")
	if got := output(t, path); got != "v0.1.0" {
		t.Errorf("at the tag it prints %q", got)
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}
