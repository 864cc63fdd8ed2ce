package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func replace(name string, text []byte) error {
	return Replace(name, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// TestReplace leaves a whole file, keeps its mode, follows a link, and writes to what is no file.
func TestReplace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "chart"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("old"), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	if err := replace(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	info, _ := os.Lstat(link)
	if was, _ := os.Stat(file); err != nil || string(text) != "new" || was.Mode().Perm() != 0o600 ||
		info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the file has %q, %v, %v", text, was.Mode(), err)
	}
	if err := replace(os.DevNull, []byte("new")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Fatalf("%s is a file now: %v", os.DevNull, err)
	}
	if err := replace(filepath.Join(dir, "nowhere", "chart"), nil); err == nil {
		t.Error("a missing folder is no error")
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("%d files are left", len(left))
	}
}

// TestLock: one has it at a time, and the error for another names the file.
func TestLock(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "config")
	unlock, err := Lock(name, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(name, 0); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), name+".lock") {
		t.Errorf("a second one: %v", err)
	}
	unlock()
	if unlock, err = Lock(name, 0); err != nil {
		t.Fatalf("after the first: %v", err)
	}
	unlock()
	if _, err := Lock(filepath.Join(name, "absent"), time.Hour); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no folder: %v", err)
	}
}
