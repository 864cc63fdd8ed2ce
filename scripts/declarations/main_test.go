package main

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestFilesAreUpToDate with the declarations.
func TestFilesAreUpToDate(t *testing.T) {
	t.Chdir(testkit.Root())
	if err := generate(true); err != nil {
		t.Error(err)
	}
}
