package cli

import (
	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

func (s *servers) historyCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "history SERVER", Short: "Show what happened to a tracked server, and whose request caused it, the newest first",
		Args: cobra.ExactArgs(1), ValidArgsFunction: s.completeServers(1), Annotations: calls("getServerHistory", "listServers"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkLimit(limit); err != nil {
				return err
			}
			client, err := s.api(cmd.Context())
			if err != nil {
				return err
			}
			t, err := s.resolveOne(cmd.Context(), client, args[0])
			if err != nil {
				return err
			}
			path := "/v1/servers/history/" + t.id
			found, err := api.List[api.ServerEvent](cmd.Context(), client, path, through(s.connection), "events", limit)
			if err != nil {
				return err
			}
			return output.List(&s.print, found, func(e api.ServerEvent) string { return e.ID }, historyColumns)
		},
	}
	limitFlag(cmd, &limit, 50)
	return cmd
}

// datum is a text in an event's data; "" when it is not there.
func datum(data map[string]any, path ...string) string {
	for _, name := range path[:len(path)-1] {
		data, _ = data[name].(map[string]any)
	}
	text, _ := data[path[len(path)-1]].(string)
	return text
}

var historyColumns = []output.Column[api.ServerEvent]{
	{Title: "AT", Text: func(e api.ServerEvent) string { return stamp(e.At) }},
	{Title: "STATE", State: true, Text: func(e api.ServerEvent) string { return datum(e.Data, "state") }},
	{Title: "BEFORE", Text: func(e api.ServerEvent) string { return datum(e.Data, "previous_state") }},
	{Title: "USER", Text: func(e api.ServerEvent) string {
		if name := datum(e.Data, "actor", "user_name"); name != "" {
			return name
		}
		return datum(e.Data, "actor", "user_id")
	}},
	{Title: "PROJECT", Text: func(e api.ServerEvent) string { return datum(e.Data, "actor", "project_id") }},
	{Title: "ACTION", Text: func(e api.ServerEvent) string { return datum(e.Data, "actor", "action") }},
	{Title: "CONNECTION", Wide: true, Text: func(e api.ServerEvent) string { return datum(e.Data, "actor", "connection_id") }},
	{Title: "ORDER", Wide: true, Text: func(e api.ServerEvent) string { return datum(e.Data, "actor", "order_id") }},
	{Title: "TYPE", Wide: true, Text: func(e api.ServerEvent) string { return e.Type }},
	{Title: "ID", Wide: true, Text: func(e api.ServerEvent) string { return e.ID }},
}
