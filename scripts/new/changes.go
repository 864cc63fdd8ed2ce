package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// change is a file before and after.
type change struct {
	path          string
	before, after []byte // before is nil when there is no such file
}

func (c change) verb() string {
	if c.before == nil {
		return "created"
	}
	return "changed"
}

// changes are all files that are created and changed.
func (f function) changes() ([]change, error) {
	var list []change
	created := f.created()
	for _, name := range slices.Sorted(maps.Keys(created)) {
		var text bytes.Buffer
		if err := f.render(&text, name); err != nil {
			return nil, err
		}
		list = append(list, change{path: created[name], after: text.Bytes()})
	}
	for _, e := range f.edits() {
		i := slices.IndexFunc(list, func(c change) bool { return c.path == e.path })
		if i < 0 {
			before, err := os.ReadFile(e.path)
			if err != nil {
				return nil, err
			}
			i, list = len(list), append(list, change{path: e.path, before: before, after: before})
		}
		after, err := e.apply(string(list[i].after))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.path, err)
		}
		list[i].after = []byte(after)
	}
	return list, formatted(list)
}

// formatted formats Go files: a new entry may move those beside it.
func formatted(list []change) error {
	for i, c := range list {
		if filepath.Ext(c.path) != ".go" {
			continue
		}
		after, err := format.Source(c.after)
		if err != nil {
			return fmt.Errorf("%s: %w", c.path, err)
		}
		list[i].after = after
	}
	return nil
}

// write writes all or nothing.
func write(changes []change) (err error) {
	var undo []func() error
	defer func() {
		if err == nil {
			return
		}
		for _, step := range slices.Backward(undo) {
			err = errors.Join(err, step())
		}
	}()
	for _, c := range changes {
		undone, failed := c.prepare()
		undo = append(undo, undone...)
		if failed != nil {
			return failed
		}
		if err := os.WriteFile(c.path, c.after, 0o644); err != nil { //nolint:gosec // sources, for everybody
			return err
		}
	}
	return nil
}

// prepare makes the folder of a new file, and says how all of the change is undone.
func (c change) prepare() (undo []func() error, err error) {
	if c.before != nil {
		restore := func() error { return os.WriteFile(c.path, c.before, 0o644) } //nolint:gosec // as it was
		return []func() error{restore}, nil
	}
	dir := filepath.Dir(c.path)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		undo = append(undo, func() error { return os.RemoveAll(dir) })
		if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as git makes it
			return nil, err
		}
	}
	return append(undo, func() error { return os.RemoveAll(c.path) }), nil //nolint:gosec // what write has made
}
