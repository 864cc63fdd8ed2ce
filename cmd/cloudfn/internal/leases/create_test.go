package leases

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestHeal: the flag is a reservation's when a lease is made, and needs hosts.
func TestHeal(t *testing.T) {
	t.Parallel()
	for hosts, want := range map[string]string{"1": "manual", "": ""} {
		cmd := create(&cli.App{Now: time.Now})
		if err := cmd.ParseFlags([]string{"--heal", "manual", "--duration", "8h", "--hosts", hosts}); err != nil {
			t.Fatal(err)
		}
		body, err := request(cmd, "workshop")
		var got any = ""
		if made, _ := body["reservations"].([]map[string]any); len(made) == 1 {
			got = made[0]["heal"]
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("with --hosts %q it is %v: %v", hosts, got, err)
		}
	}
}

// TestExamples parses what the help shows, as a shell does: the flags, and the expressions in them.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, command := range []func(*cli.App) *cobra.Command{create, availability} {
		cmd := command(&cli.App{Now: time.Now})
		for example := range strings.SplitSeq(strings.ReplaceAll(cmd.Example, "\\\n", ""), "\n") {
			words, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+example).Output()
			if err != nil {
				t.Fatal(err)
			}
			args := strings.Split(strings.TrimSpace(string(words)), "\n")
			if got := strings.Join(args[:3], " "); got != "cloudfn leases "+cmd.Name() {
				t.Errorf("%q is of another command", got)
			}
			cmd := command(&cli.App{Now: time.Now})
			if err := cmd.ParseFlags(args[3:]); err != nil {
				t.Errorf("%s: %v", example, err)
				continue
			}
			if cmd.Name() == "create" {
				if _, err := request(cmd, args[3]); err != nil {
					t.Errorf("%s: %v", example, err)
				}
			}
			expressions, err := cmd.Flags().GetStringArray("capability")
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range expressions {
				if _, err := domain.ParseCapability("--capability", text); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
