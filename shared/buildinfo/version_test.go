package buildinfo_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const cli = "github.com/cloudfn/cloudfn/cmd/cloudfn"

// TestVersion runs the CLI with and without the linker's flag that make build sets.
func TestVersion(t *testing.T) {
	t.Parallel()
	flag := "-X github.com/cloudfn/cloudfn/shared/buildinfo.version=v1.2.3"
	if got := output(t, "go", "run", "-ldflags", flag, cli, "version"); got != "cloudfn v1.2.3" {
		t.Errorf("with the flag it prints %q", got)
	}
	if got := output(t, "go", "run", cli, "version"); !strings.HasPrefix(got, "cloudfn ") {
		t.Errorf("without the flag it prints %q", got)
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
	if err := os.WriteFile(path, script, 0o700); err != nil {
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
