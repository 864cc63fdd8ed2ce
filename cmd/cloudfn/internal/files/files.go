// Package files writes files whole or not at all, and one process at a time.
package files

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Lock creates NAME.lock, which one process has at a time: another one waits for it, or gets fs.ErrExist. unlock
// deletes it. A process that is killed leaves it.
func Lock(name string, wait time.Duration) (unlock func(), err error) {
	name += ".lock"
	for end := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) //nolint:gosec // the user names it
		if err == nil {
			_ = file.Close() // it is empty
			return func() { _ = os.Remove(name) }, nil
		}
		if !errors.Is(err, fs.ErrExist) || time.Now().After(end) {
			return nil, err
		}
	}
}

// Replace writes a file whole or not at all, and keeps its permissions: a reader finds the old file or the new one. It
// writes directly to what is no regular file, such as /dev/stdout.
func Replace(name string, write func(io.Writer) error) error {
	mode := fs.FileMode(0o666) // less the umask
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0) //nolint:gosec // the user names it
		if err != nil {
			return err
		}
		return errors.Join(write(file), file.Close())
	default:
		mode = info.Mode().Perm()
		if name, err = filepath.EvalSymlinks(name); err != nil {
			return err
		}
	}
	return Create(name, mode, write)
}

// Create writes a new file, and puts it whole in the place of one that may be there.
func Create(name string, mode fs.FileMode, write func(io.Writer) error) error {
	temporary := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+"."+rand.Text()[:8])
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode) //nolint:gosec // the user names it
	if err != nil {
		return err
	}
	if err = errors.Join(write(file), file.Close()); err == nil {
		err = os.Rename(temporary, name)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	return err
}
