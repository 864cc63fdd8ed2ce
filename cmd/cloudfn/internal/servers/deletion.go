package servers

import (
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

func (s *servers) deleteCommand() *cobra.Command {
	cmd := s.actCommand("delete", "Delete servers", "")
	cmd.Flags().Bool("force", false, "also servers that existed before they were connected")
	cmd.Flags().Bool("dry-run", false, "only show what is deleted with them, and what stays")
	act := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if isDry, _ := cmd.Flags().GetBool("dry-run"); isDry {
			return s.showDeletion(cmd, args)
		}
		return act(cmd, args)
	}
	return cmd
}

// deleted is something that is deleted with a server, or stays when that is deleted.
type deleted struct {
	Server  string `json:"server"` // as the user named it
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Deleted bool   `json:"deleted"`
	ID      string `json:"id"`
}

var deletedTable = output.Table[deleted]{
	Name:    func(d deleted) string { return d.ID },
	Columns: []string{"SERVER", "KIND", "NAME", "DELETED", "ID"},
}

// showDeletion prints what is deleted with servers.
func (s *servers) showDeletion(cmd *cobra.Command, args []string) error {
	if err := s.ownOnly(); err != nil {
		return err
	}
	targets, err := s.resolve(cmd.Context(), args...)
	if err != nil {
		return err
	}
	query := url.Values{"dry_run": {"true"}}
	if isForced, _ := cmd.Flags().GetBool("force"); isForced {
		query.Set("force", "true")
	}
	var all []api.Item[deleted]
	for _, t := range targets {
		if t.Err != nil {
			return t.Err
		}
		var d api.ServerDeletion
		path := "/v1/servers/" + t.ID + "?" + query.Encode()
		if err := s.API().Do(cmd.Context(), http.MethodDelete, path, nil, &d); err != nil {
			return err
		}
		rows := []deleted{{t.Given, "server", t.Given, true, t.ID}}
		for _, v := range d.Volumes {
			rows = append(rows, deleted{t.Given, "volume", v.Name, v.Deleted, v.ID})
		}
		for _, f := range d.FloatingIps {
			rows = append(rows, deleted{t.Given, "floating IP", f.Address, f.Deleted, f.ID})
		}
		for _, r := range rows {
			raw, err := json.Marshal(r)
			if err != nil {
				return err
			}
			all = append(all, api.Item[deleted]{Value: r, Raw: raw})
		}
	}
	return output.List(&s.Print, all, deletedTable)
}
