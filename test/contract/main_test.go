// Package contract_test holds what cloudfn serves against openapi.yaml, and its folders against the layout.
package contract_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// read gives a file of the repository, by its path from the root.
func read(t *testing.T, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{testkit.Root()}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
