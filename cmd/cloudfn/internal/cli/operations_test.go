package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestEveryOperationHasACommand: a new route comes with its command, or with a reason in testdata/not-commands.yaml why not.
func TestEveryOperationHasACommand(t *testing.T) {
	t.Parallel()
	var document struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	read(t, &document, "functions", "openapi.yaml")
	var without map[string]string
	read(t, &without, "cmd", "cloudfn", "testdata", "not-commands.yaml")
	called := operations((&app{env: func(string) (string, bool) { return "", false }}).root("cloudfn"))
	known := []string{}
	for _, path := range document.Paths {
		for _, operation := range path {
			if o, ok := operation.(map[string]any); ok && o["operationId"] != nil {
				known = append(known, o["operationId"].(string))
			}
		}
	}
	for _, id := range known {
		has, not := slices.Contains(called, id), without[id] != ""
		if has == not {
			t.Errorf("operation %s: a command calls it: %v, there is a reason why none does: %v", id, has, not)
		}
	}
	for _, id := range called {
		if !slices.Contains(known, id) {
			t.Errorf("a command calls %s, which is no operation", id)
		}
	}
	for id := range without {
		if !slices.Contains(known, id) {
			t.Errorf("not-commands.yaml has %s, which is no operation", id)
		}
	}
}

// operations are what a command and those below it call.
func operations(cmd *cobra.Command) (all []string) {
	if names := cmd.Annotations["operations"]; names != "" {
		all = strings.Split(names, ",")
	}
	for _, sub := range cmd.Commands() {
		all = append(all, operations(sub)...)
	}
	return all
}

func read(t *testing.T, into any, path ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{testkit.Root()}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// TestHelpIsThere: whatever can be given has its line of help.
func TestHelpIsThere(t *testing.T) {
	t.Parallel()
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q", cmd.CommandPath(), cmd.Short)
		}
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look((&app{env: func(string) (string, bool) { return "", false }}).root("cloudfn"))
}
