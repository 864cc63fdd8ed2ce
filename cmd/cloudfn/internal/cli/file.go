package cli

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceFile writes a file whole or not at all: who reads it meanwhile finds the old one or the new one. What is there and no
// file, such as /dev/stdout, is written to.
func replaceFile(name string, text []byte) error {
	return writeFile(name, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

// writeFile is replaceFile for what is written piece by piece.
func writeFile(name string, write func(io.Writer) error) error {
	info, err := os.Stat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0) //nolint:gosec // the user names it
		if err != nil {
			return err
		}
		return errors.Join(write(file), file.Close())
	}
	mode := fs.FileMode(0o666) // less what the umask takes
	if err == nil {
		mode = info.Mode().Perm()
		if name, err = filepath.EvalSymlinks(name); err != nil {
			return err
		}
	}
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
