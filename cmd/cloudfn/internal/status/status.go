// Package status holds the commands that tell how cloudfn and this program are.
package status

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/buildinfo"
)

// Command shows cloudfn's status.
func Command(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Report whether cloudfn, its database and Keystone answer", Args: cobra.NoArgs,
		Annotations: cli.Calls("getStatus"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := api.Get[api.Status](cmd.Context(), a.NewClient(nil), "/v1/status", nil)
			if err != nil {
				return err
			}
			if status.Value.Function == "" { // the daemon runs them all
				var fields map[string]json.RawMessage
				_ = json.Unmarshal(status.Raw, &fields) // it was read before
				delete(fields, "function")
				status.Raw, _ = json.Marshal(fields)
			}
			if err := output.One(&a.Print, status, table); err != nil {
				return err
			}
			s := status.Value
			if !s.Postgres.Reachable || !s.Keystone.Reachable {
				return exit.Failedf("%s does not work: a service that it needs does not answer", a.URL)
			}
			return nil
		},
	}
}

var table = output.Table[api.Status]{
	Name:    func(s api.Status) string { return s.Version },
	Columns: []string{"VERSION", "FUNCTION", "POSTGRES*", "KEYSTONE*"},
	Texts: map[string]func(api.Status) string{
		"POSTGRES": func(s api.Status) string { return dependency(s.Postgres) },
		"KEYSTONE": func(s api.Status) string { return dependency(s.Keystone) },
	},
}

func dependency(d api.Dependency) string {
	if d.Error != nil {
		return d.Error.Detail
	}
	return "up"
}

// Version prints this program's version.
func Version(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print this program's version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.TextOnly(cmd, "table", "wide", "value"); err != nil {
				return err
			}
			_, err := fmt.Fprintln(a.Out, "cloudfn", buildinfo.Version())
			return err
		},
	}
}
