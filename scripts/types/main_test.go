package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestTypesAreUpToDate makes them again, and holds that they are the ones that are committed.
func TestTypesAreUpToDate(t *testing.T) {
	t.Chdir("../..")
	fresh := filepath.Join(t.TempDir(), "types.go")
	if err := generate(source, fresh); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadFile(fresh)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, committed) {
		t.Errorf("%s is not what %s makes of %s: run `make generate`", target, "scripts/types", source)
	}
}
