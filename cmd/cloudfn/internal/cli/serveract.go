package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// outcome is what an action on one server came to, as the API says it.
type outcome struct {
	given string

	ID       string             `json:"id"`
	State    string             `json:"state,omitempty"`
	Changed  bool               `json:"changed"`
	ActionID string             `json:"action_id,omitempty"`
	Error    *api.ServerRefusal `json:"error,omitempty"`
	ended    bool               // it was waited for, and is done
}

func (s *servers) startCommand() *cobra.Command {
	cmd := s.actCommand(api.ServerActionActionStart, "Start servers that are stopped or shelved", nil)
	cmd.Example = "  cloudfn servers start web-1 --wait"
	return cmd
}

func (s *servers) stopCommand() *cobra.Command {
	cmd := s.actCommand(api.ServerActionActionStop, "Stop servers", nil)
	cmd.Example = "  cloudfn servers stop web-1 web-2 --wait"
	return cmd
}

func (s *servers) rebootCommand() *cobra.Command {
	var hard bool
	var id string
	cmd := s.actCommand(api.ServerActionActionReboot, "Reboot servers", func(body *api.ServerAction) { body.Hard, body.ID = optional(hard), optional(id) })
	idFlag(cmd, &id)
	cmd.Flags().BoolVar(&hard, "hard", false, "power off and on, without asking the guest")
	return cmd
}

func (s *servers) deleteCommand() *cobra.Command {
	var force bool
	cmd := s.actCommand(api.ServerActionActionDelete, "Delete servers, without asking", func(body *api.ServerAction) { body.Force = optional(force) })
	cmd.Aliases = []string{"rm"}
	cmd.Flags().BoolVar(&force, "force", false, "also servers that were there before they were connected")
	return cmd
}

// actCommand is a command that does one thing to any number of servers. more adds what the body has besides.
func (s *servers) actCommand(action api.ServerActionAction, short string, more func(*api.ServerAction)) *cobra.Command {
	var w waiting
	cmd := &cobra.Command{
		Use: string(action) + " SERVER...", Short: short, Args: cobra.MinimumNArgs(1), ValidArgsFunction: s.completeServers(0),
		Annotations: calls("actOnServer", "actOnServers", "getServer", "getServerAction", "listServers"),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := api.ServerAction{Action: action, ConnectionID: optional(s.connection)}
			if more != nil {
				more(&body)
			}
			client, err := s.api(cmd.Context())
			if err != nil {
				return err
			}
			targets, err := s.resolve(cmd.Context(), client, args)
			if err != nil {
				return err
			}
			return s.act(cmd.Context(), client, targets, body, w)
		},
	}
	w.flags(cmd, "it is done")
	return cmd
}

// act does it, waits if it shall, and prints a line for each server. What goes wrong with the only server is the command's error.
func (s *servers) act(ctx context.Context, client *api.Client, targets []target, body api.ServerAction, w waiting) error {
	var done []*outcome
	var err error
	if len(targets) > 1 && body.ID != nil {
		return wrong("--id goes with one server only")
	}
	if len(targets) == 1 {
		done, err = s.actOnOne(ctx, client, targets[0], body)
	} else {
		done, err = s.actOnMany(ctx, client, targets, body)
	}
	if err != nil {
		return s.broken(done, err)
	}
	if w.on {
		err = s.wait(ctx, client, done, body.Action, w.limit)
	}
	if printed := s.printOutcomes(done); printed != nil {
		return printed
	}
	if err != nil {
		return err
	}
	return failures(done, body.Action)
}

func (s *servers) actOnOne(ctx context.Context, client *api.Client, t target, body api.ServerAction) ([]*outcome, error) {
	if t.err != nil {
		return nil, t.err
	}
	sent, err := s.send(ctx, client, t.id, body)
	if err != nil {
		return nil, err
	}
	sent.Value.given = t.given
	return []*outcome{&sent.Value}, nil
}

// broken says why not all servers were asked for, after what came of those that were.
func (s *servers) broken(done []*outcome, err error) error {
	if len(done) > 0 {
		if printed := s.printOutcomes(done); printed != nil {
			return printed
		}
		return fmt.Errorf("%w; of the servers that are not listed it is not known", err)
	}
	return err
}

// mostTargets is how many servers one request may act on.
const mostTargets = 100

// actOnMany gives an outcome for each target, in their order; when it fails, for those that the API has answered about.
func (s *servers) actOnMany(ctx context.Context, client *api.Client, targets []target, body api.ServerAction) ([]*outcome, error) {
	all := make([]*outcome, len(targets))
	var open []*outcome
	asked := 0
	for i, t := range targets {
		all[i] = &outcome{given: t.given, ID: t.id}
		if t.err != nil {
			all[i].Error = refusal(t.err)
			continue
		}
		open = append(open, all[i])
	}
	for part := range slices.Chunk(open, mostTargets) {
		ask := api.ServersAction{Action: api.ServerVerb(body.Action), ConnectionID: body.ConnectionID, Force: body.Force, Hard: body.Hard}
		for _, o := range part {
			ask.Ids = append(ask.Ids, o.ID)
		}
		sent, _, err := api.Send[struct{ Results []outcome }](ctx, client, http.MethodPost, "/v1/servers/actions", ask)
		if err == nil && len(sent.Value.Results) != len(part) {
			err = fmt.Errorf("%d servers were asked for, and the answer is about %d", len(part), len(sent.Value.Results))
		}
		if err != nil {
			return open[:asked], err
		}
		asked += len(part)
		for i, result := range sent.Value.Results {
			result.given = part[i].given
			*part[i] = result
		}
	}
	return all, nil
}

// refusal is what the client found out itself, in the API's form.
func refusal(err error) *api.ServerRefusal {
	code := api.CodeNotFound
	if _, ok := errors.AsType[conflict](err); ok {
		code = api.CodeConflict
	}
	return &api.ServerRefusal{Code: code, Detail: err.Error()}
}

func (s *servers) printOutcomes(done []*outcome) error {
	items := make([]api.Item[outcome], len(done))
	for i, o := range done {
		raw, err := json.Marshal(o)
		if err != nil {
			return err
		}
		items[i] = api.Item[outcome]{Value: *o, Raw: raw}
	}
	return output.List(&s.print, items, func(o outcome) string { return o.given }, outcomeColumns)
}

var outcomeColumns = []output.Column[outcome]{
	{Title: "SERVER", Text: func(o outcome) string { return o.given }},
	{Title: "STATE", State: true, Text: func(o outcome) string { return o.State }},
	{Title: "RESULT", Text: outcome.result},
	{Title: "ACTION", Wide: true, Text: func(o outcome) string { return o.ActionID }},
	{Title: "ID", Wide: true, Text: func(o outcome) string { return o.ID }},
}

func (o outcome) result() string {
	switch {
	case o.Error != nil && o.Error.Allowed != nil:
		var allowed []string
		for _, a := range *o.Error.Allowed {
			allowed = append(allowed, string(a))
		}
		return fmt.Sprintf("%s (allowed: %s)", o.Error.Detail, strings.Join(allowed, ", "))
	case o.Error != nil:
		return o.Error.Detail
	case o.ended:
		return "done"
	case o.ActionID != "":
		return "action " + o.ActionID
	case o.Changed:
		return "accepted"
	}
	return "nothing to do"
}

// failures is that not all went well; why is in the lines, but for the only one.
func failures(done []*outcome, action api.ServerActionAction) error {
	bad := slices.DeleteFunc(slices.Clone(done), func(o *outcome) bool { return o.Error == nil })
	switch {
	case len(bad) == 0:
		return nil
	case len(done) == 1:
		return failed{fmt.Errorf("%s of %s: %s", action, done[0].given, done[0].result())}
	}
	var names []string
	for _, o := range bad {
		names = append(names, o.given)
	}
	return failed{fmt.Errorf("%s failed for %d of %d servers: %s", action, len(bad), len(done), strings.Join(names, ", "))}
}
