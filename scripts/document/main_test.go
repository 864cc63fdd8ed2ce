package main

import (
	"bytes"
	"os"
	"testing"
)

// TestOpenAPIIsUpToDate: the committed file is the one that the routes make.
func TestOpenAPIIsUpToDate(t *testing.T) {
	t.Chdir("../..")
	committed, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	made, err := document()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, committed) {
		t.Errorf("%s is stale: run `make generate`", target)
	}
}
