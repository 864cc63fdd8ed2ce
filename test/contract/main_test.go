// Package contract_test holds what cloudfn serves against openapi.yaml, and its folders against the layout.
package contract_test

import (
	"os"
	"path/filepath"
	"testing"

	_ "github.com/cloudfn/cloudfn/functions/agents"
	_ "github.com/cloudfn/cloudfn/functions/callbacks"
	_ "github.com/cloudfn/cloudfn/functions/collect-stats"
	_ "github.com/cloudfn/cloudfn/functions/connections"
	_ "github.com/cloudfn/cloudfn/functions/console"
	_ "github.com/cloudfn/cloudfn/functions/deliver-events"
	_ "github.com/cloudfn/cloudfn/functions/launch"
	_ "github.com/cloudfn/cloudfn/functions/poll-instances"
	_ "github.com/cloudfn/cloudfn/functions/resources"
	_ "github.com/cloudfn/cloudfn/functions/run-connections"
	_ "github.com/cloudfn/cloudfn/functions/servers"
	_ "github.com/cloudfn/cloudfn/functions/stats"
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
