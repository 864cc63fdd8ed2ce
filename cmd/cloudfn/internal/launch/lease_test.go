package launch

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
)

// TestWarning: a lease is launched without a warning as it is made without one.
func TestWarning(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]any{"none": "PT0S", "PT0S": "PT0S", "30m": "PT30M", "": nil} {
		cmd := Command(&cli.App{Now: time.Now})
		args := []string{"--lease", "2d"}
		if text != "" {
			args = append(args, "--before-end", text)
		}
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		given := map[string]any{}
		err := addLease(cmd, given)
		if lease, _ := given["lease"].(map[string]any); err != nil || lease["before_end"] != want {
			t.Errorf("--before-end %s: got %v, %v", text, given, err)
		}
	}
}
