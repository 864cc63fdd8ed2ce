package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMain runs the command in place of the tests where TestCommand says so.
func TestMain(m *testing.M) {
	if os.Getenv("VULNCHECK") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestCommand: the command fails when govulncheck finds something that is called, or fails itself.
func TestCommand(t *testing.T) {
	t.Parallel()
	const finding = `{"finding": {"osv": "GO-2", "trace": [{"module": "a", "package": "a", "function": "F"}]}}`
	for name, tc := range map[string]struct {
		check string
		code  int
	}{
		"nothing":       {"true", 0},
		"a finding":     {"echo '" + finding + "'", 1},
		"it breaks off": {"exit 3", 1},
	} {
		bin := t.TempDir()
		program(t, bin, "go", `case "$1" in
  mod) echo '{"Version": "v0", "Dir": "/none"}' ;;
  run) `+tc.check+` ;;
esac`)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "VULNCHECK=1", "PATH="+bin+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); exitCode(t, err) != tc.code {
			t.Errorf("%s: %v, want exit %d: %s", name, err, tc.code, out)
		}
	}
}

// TestLint: make lint, and so CI, fail when this command does, and when no other check of theirs fails.
func TestLint(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		check string
		fails bool
	}{
		"nothing is found":   {"exit 0", false},
		"something is found": {"exit 1", true},
	} {
		root, bin := t.TempDir(), t.TempDir()
		for _, file := range []string{"Makefile", ".ci/run"} {
			text, err := os.ReadFile(filepath.Join(testkit.Root(), file))
			if err != nil {
				t.Fatal(err)
			}
			executable(t, root, file, string(text))
		}
		for _, script := range []string{"version", "style", "openapi", "sandbox", "gotest", "test-all"} {
			program(t, root, "scripts/"+script, "exit 0")
		}
		program(t, bin, "shellcheck", "exit 0")
		program(t, bin, "git", "exit 0")
		program(t, bin, "go", `case "$*" in "run ./scripts/vulncheck"*) `+tc.check+` ;; esac`)
		for _, command := range [][]string{{"make", "lint"}, {".ci/run"}} {
			cmd := exec.Command(command[0], command[1:]...)
			if strings.Contains(command[0], "/") {
				cmd.Path = filepath.Join(root, command[0])
				// make test, which CI runs as well, is not what is tested
				program(t, bin, "make", `[ "$1" != lint ] || exec `+which(t, "make")+` "$@"`)
			}
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "CLOUDFN_SANDBOX="+root, "MAKEFLAGS=")
			if out, err := cmd.CombinedOutput(); (exitCode(t, err) != 0) != tc.fails {
				t.Errorf("%s, where %s: %v\n%s", command, name, err, out)
			}
		}
	}
}

// program writes a script in the place of a program.
func program(t *testing.T, root, name, commands string) {
	t.Helper()
	executable(t, root, name, "#!/bin/bash\n"+commands+"\n")
}

func executable(t *testing.T, root, name, text string) {
	t.Helper()
	at := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

func which(t *testing.T, name string) string {
	t.Helper()
	at, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, isExit := errors.AsType[*exec.ExitError](err)
	if !isExit {
		t.Fatal(err)
	}
	return exit.ExitCode()
}
