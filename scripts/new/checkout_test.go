package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// checkout copies the files of this checkout that git tracks or would add, and makes the copy the working directory.
func checkout(t *testing.T) {
	t.Helper()
	root, dir := testkit.Root(), copyFolder(t)
	for path := range strings.SplitSeq(tracked(t, root), "\x00") {
		text, err := os.ReadFile(filepath.Join(root, path))
		if path == "" || errors.Is(err, fs.ErrNotExist) { // it was deleted, and that is not committed
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), text, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

// copyFolder is the same folder in each run of a checkout's tests, so that Go's build cache has most of the copy.
func copyFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("cloudfn-new-%x", sha256.Sum224([]byte(testkit.Root()))))
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tracked(t *testing.T, root string) string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	list, err := cmd.Output()
	if err != nil {
		t.Fatalf("git does not say which files are the project's: %v", err)
	}
	return string(list)
}

// command runs a command that must succeed, and returns its output.
func command(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
