package servers

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// result is that of an action on one server.
type result struct {
	given string

	ID       string             `json:"id"`
	State    string             `json:"state,omitempty"`
	Changed  bool               `json:"changed"`
	ActionID string             `json:"action_id,omitempty"`
	ImageID  string             `json:"image_id,omitempty"`
	Password string             `json:"admin_password,omitempty"`
	Error    *api.ServerRefusal `json:"error,omitempty"`
	isDone   bool               // the command has waited for it
	next     string             // what has to be done then
}

func (s *servers) startCommand() *cobra.Command {
	return s.actCommand("start", "Start servers that are stopped or shelved", "  cloudfn servers start web-1 --wait")
}

func (s *servers) stopCommand() *cobra.Command {
	return s.actCommand("stop", "Stop servers", "  cloudfn servers stop web-1 web-2 --wait")
}

func (s *servers) rebootCommand() *cobra.Command {
	cmd := s.actCommand("reboot", "Reboot servers", "")
	idFlag(cmd)
	cmd.Flags().Bool("hard", false, "power off and on, without asking the guest")
	return cmd
}

func (s *servers) shelveCommand() *cobra.Command {
	cmd := s.actCommand("shelve", "Take servers off their hosts, and keep their disks",
		"  cloudfn servers shelve web-1 web-2 --wait")
	cmd.Long = `Shelve servers that are active, stopped, paused or suspended. They keep their disks, addresses and
ids, and use no host until they are unshelved, which may fail when no host has room.`
	return cmd
}

func (s *servers) unshelveCommand() *cobra.Command {
	return s.actCommand("unshelve", "Start servers that are shelved", "  cloudfn servers unshelve web-1 --wait")
}

// idFlag lets a user repeat an action whose answer was lost.
func idFlag(cmd *cobra.Command) {
	const usage = "id of the action, to send one again whose answer was lost: it is done once (default a new one)"
	cmd.Flags().String("id", "", usage)
}

// actCommand is a command that does the same to any number of servers. The caller adds flags for the request's fields.
func (s *servers) actCommand(action, short, example string) *cobra.Command {
	var wait cli.Wait
	cmd := &cobra.Command{
		Use: strings.ReplaceAll(action, "_", "-") + " SERVER...", Short: short, Example: example,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: s.Complete(0, s.finder(filter{})),
		Annotations:       cli.Calls("actOnServer", "actOnServers", "getServer", "getServerAction", "listServers"),
		RunE: func(cmd *cobra.Command, args []string) error {
			targets, err := s.resolve(cmd.Context(), args...)
			if err != nil {
				return err
			}
			body := cli.Body(cmd.Flags(), "id", "hard", "force", "name", "reason", "flavor", "image")
			return s.act(cmd.Context(), targets, action, body, wait)
		},
	}
	wait.Flags(cmd, "it is done")
	return cmd
}

// act sends the action with the other fields of its request, waits if the user wants that, and prints a line for each
// server. With only one server its failure is the command's error.
func (s *servers) act(
	ctx context.Context, targets []cli.Target, action string, body map[string]any, wait cli.Wait,
) error {
	body["action"] = action
	if s.connection != "" {
		body["connection_id"] = s.connection
	}
	send := s.sendMany
	if len(targets) == 1 {
		send = s.sendOne
	} else if body["id"] != nil {
		return exit.Usagef("--id cannot be combined with several servers")
	}
	results, err := send(ctx, targets, body)
	if err != nil {
		if len(results) == 0 {
			return err
		}
		if failure := s.print(results); failure != nil {
			return failure
		}
		return fmt.Errorf("%w; of the servers that are not listed it is not known", err)
	}
	if wait.IsOn {
		err = s.wait(ctx, results, api.ServerActionAction(action), wait)
	}
	if failure := s.print(results); failure != nil {
		return failure
	}
	if err != nil {
		return err
	}
	return failures(results, action)
}

// sendOne sends an action on one server under an id, so that a lost answer lets it send the same action again.
func (s *servers) sendOne(ctx context.Context, targets []cli.Target, body map[string]any) ([]*result, error) {
	t := targets[0]
	if t.Err != nil {
		return nil, t.Err
	}
	if body["id"] == nil {
		body["id"] = uuid.NewString()
	}
	var sent api.Item[result]
	isLost, err := s.Resend(ctx, "action", func() (err error) {
		sent, err = api.Send[result](ctx, s.API(), http.MethodPost, "/v1/servers/"+t.ID+"/actions", body)
		return err
	})
	if isLost && ctx.Err() == nil {
		return nil, fmt.Errorf("%w. To go on with the same action add --id %s", err, body["id"])
	}
	if err != nil {
		return nil, err
	}
	sent.Value.given = t.Given
	return []*result{&sent.Value}, nil
}

// maxTargets is how many servers one request may act on.
const maxTargets = 100

// sendMany gives a result for each target, in their order; after an error, for those that the API has answered for.
func (s *servers) sendMany(ctx context.Context, targets []cli.Target, body map[string]any) ([]*result, error) {
	all := make([]*result, len(targets))
	var open []*result
	for i, t := range targets {
		all[i] = &result{given: t.Given, ID: t.ID}
		if t.Err != nil {
			all[i].Error = refusal(s.Code(t.Err), t.Err)
			continue
		}
		open = append(open, all[i])
	}
	answered := 0
	for part := range slices.Chunk(open, maxTargets) {
		ids := make([]string, len(part))
		for i, r := range part {
			ids[i] = r.ID
		}
		body["ids"] = ids
		sent, err := cli.SendOnce[struct{ Results []result }](ctx, s.App, actions.Path, body)
		results := sent.Value.Results
		if err == nil && len(results) != len(part) {
			err = fmt.Errorf("the request was for %d servers, and the answer is for %d", len(part), len(results))
		}
		if err != nil {
			return open[:answered], err
		}
		answered += len(part)
		for i, result := range results {
			result.given = part[i].given
			*part[i] = result
		}
	}
	return all, nil
}

// refusal is an error that the client found, in the API's form.
func refusal(code int, err error) *api.ServerRefusal {
	if code == exit.Conflict {
		return &api.ServerRefusal{Code: api.CodeConflict, Detail: err.Error()}
	}
	return &api.ServerRefusal{Code: api.CodeNotFound, Detail: err.Error()}
}

func (s *servers) print(results []*result) error {
	values := make([]result, len(results))
	for i, r := range results {
		values[i] = *r
	}
	return output.Values(&s.Print, values, resultTable)
}

var resultTable = output.Table[result]{
	Name:    func(r result) string { return r.given },
	Columns: []string{"SERVER", "STATE*", "RESULT", "ACTION+:action_id", "ID+"},
	Texts:   map[string]func(result) string{"SERVER": func(r result) string { return r.given }, "RESULT": result.text},
}

func (r result) text() string {
	switch {
	case r.Error != nil && r.Error.Allowed != nil:
		var allowed []string
		for _, action := range *r.Error.Allowed {
			allowed = append(allowed, string(action))
		}
		return fmt.Sprintf("%s (allowed: %s)", r.Error.Detail, strings.Join(allowed, ", "))
	case r.Error != nil:
		return r.Error.Detail
	case r.Password != "":
		return "the password is " + r.Password
	case r.isDone && r.next != "":
		return "done: " + r.next
	case r.isDone && r.ImageID != "":
		return "done: image " + r.ImageID
	case r.isDone:
		return "done"
	case r.ImageID != "":
		return "accepted: image " + r.ImageID
	case r.ActionID != "":
		return "action " + r.ActionID
	case r.Changed:
		return "accepted"
	}
	return "nothing to do"
}

// failures is the command's error when some servers failed. The lines have the reasons; with only one server the
// error has it.
func failures(results []*result, action string) error {
	var names []string
	for _, r := range results {
		if r.Error != nil {
			names = append(names, r.given)
		}
	}
	switch {
	case len(names) == 0:
		return nil
	case len(results) == 1:
		return exit.Failedf("%s of %s: %s", action, names[0], results[0].text())
	}
	return exit.Failedf("%s failed for %d of %d servers: %s", action, len(names), len(results),
		strings.Join(names, ", "))
}

// waiter waits for the end of an action on one server.
type waiter struct {
	*result
	action     api.ServerActionAction
	isAccepted bool   // Nova has accepted an action through a connection
	hasMoved   bool   // it was in another state than error: from then on error is a failure
	flavor     string // of a server that is being resized, before
	hasRebuilt bool   // Nova has begun to rebuild it
	note       string // what is still to come, besides its state

	restsSince time.Time // when it was first seen in a state that no deletion leads to
}

// goals are the states that actions lead to. An action without one is done when Nova has accepted it; a snapshot has an
// image to wait for.
var goals = map[api.ServerActionAction]domain.InstanceState{
	api.ServerActionActionStart: domain.InstanceActive, api.ServerActionActionStop: domain.InstanceStopped,
	api.ServerActionActionPause: domain.InstancePaused, api.ServerActionActionUnpause: domain.InstanceActive,
	api.ServerActionActionSuspend: domain.InstanceSuspended, api.ServerActionActionResume: domain.InstanceActive,
	api.ServerActionActionReboot: domain.InstanceActive, api.ServerActionActionDeploy: domain.InstanceActive,
	api.ServerActionActionShelve: domain.InstanceShelved, api.ServerActionActionUnshelve: domain.InstanceActive,
	api.ServerActionActionDelete:            domain.InstanceDeleted,
	api.ServerActionAction(domain.Rebuild):  domain.InstanceActive,
	api.ServerActionAction(domain.Rescue):   domain.InstanceRescued,
	api.ServerActionAction(domain.Unrescue): domain.InstanceActive,
	// The status says when Nova has done it: see updateResize.
	api.ServerActionAction(domain.Resize):        domain.InstanceResizing,
	api.ServerActionAction(domain.ConfirmResize): domain.InstanceActive,
	api.ServerActionAction(domain.RevertResize):  domain.InstanceActive,
}

// verifyResize is Nova's status of a server that waits until its resize is confirmed or reverted.
const verifyResize = "VERIFY_RESIZE"

// stable are the states that last until someone acts.
var stable = []domain.InstanceState{
	domain.InstanceActive, domain.InstanceStopped, domain.InstanceShelved, domain.InstancePaused,
	domain.InstanceSuspended, domain.InstanceRescued, domain.InstanceError, domain.InstanceDeleted,
}

// wait polls the servers until each has reached its goal, or has failed.
func (s *servers) wait(ctx context.Context, results []*result, action api.ServerActionAction, wait cli.Wait) error {
	all := make([]*waiter, len(results))
	for n, r := range results {
		all[n] = &waiter{result: r, action: action}
	}
	_, err := cli.Waiter[[]*waiter]{
		Get: func(ctx context.Context) ([]*waiter, error) {
			for _, w := range open(all) {
				before := w.State
				if err := s.poll(ctx, w); err != nil {
					return nil, err
				}
				if s.ErrSize != nil && w.State != before { // someone watches
					fmt.Fprintf(s.Err, "%s: %s\n", output.Clean(w.given), output.Paint(s.HasColors, w.State))
				}
			}
			return all, nil
		},
		Done:      func(all []*waiter) (bool, error) { return len(open(all)) == 0, nil },
		Remaining: progress,
	}.Wait(ctx, s.App, wait, all)
	return err
}

// open are those that have neither reached their goal nor failed.
func open(all []*waiter) []*waiter {
	return slices.DeleteFunc(slices.Clone(all), func(w *waiter) bool { return w.isDone || w.Error != nil })
}

func progress(all []*waiter) string {
	left := open(all)
	text := left[0].given + " is " + cmp.Or(left[0].State, "not known yet") + left[0].note
	if len(left) > 1 {
		text += fmt.Sprintf(", and %d more", len(left)-1)
	}
	return text
}

// poll reads a server's state. Its error means that the API did not know.
func (s *servers) poll(ctx context.Context, w *waiter) error {
	if w.ActionID != "" && !w.isAccepted {
		return s.pollAction(ctx, w)
	}
	if w.action == api.ServerActionActionSnapshot {
		return s.pollImage(ctx, w)
	}
	found, err := api.Get[api.Server](ctx, s.API(), "/v1/servers/"+w.ID, cli.ConnectionQuery(s.connection))
	if api.HasStatus(err, http.StatusNotFound) {
		w.setGone()
		return nil
	}
	if err == nil {
		w.update(found.Value)
	}
	return err
}

// pollAction reads an action through a connection. The server's state says something only after the action is done.
func (s *servers) pollAction(ctx context.Context, w *waiter) error {
	found, err := s.getAction(ctx, w.ActionID)
	if err != nil {
		return err
	}
	w.note = ""
	switch a := found.Value; {
	case a.Status == api.DelegatedActionStatusFailed:
		w.fail(api.Code(domain.Deref(a.Error).Code), domain.Deref(a.Error).Detail)
	case a.Status == api.DelegatedActionStatusDone && w.action == api.ServerActionActionDelete:
		w.setGone()
	case a.Status == api.DelegatedActionStatusDone && w.action == api.ServerActionActionSnapshot:
		w.ImageID, w.isDone = domain.Deref(a.ImageID), true
	case a.Status == api.DelegatedActionStatusDone:
		w.isAccepted = true
	default:
		w.note = ", and the action has not been done yet"
	}
	return nil
}

func (s *servers) getAction(ctx context.Context, id string) (api.Item[api.DelegatedAction], error) {
	return actions.Get(ctx, s.App, id, cli.ConnectionQuery(s.connection))
}

func (w *waiter) fail(code api.Code, detail string) {
	w.Error = &api.ServerRefusal{Code: code, Detail: detail}
}

// setGone records that the server does not exist any more.
func (w *waiter) setGone() {
	w.State, w.isDone = string(domain.InstanceDeleted), w.action == api.ServerActionActionDelete
	if !w.isDone {
		w.fail(api.CodeNotFound, "the server is deleted")
	}
}

// update judges a server's current state. The API tracks the progress of an instance. Any other server only has
// Nova's status, which stays the old one while Nova works; through a connection the state is the last one seen, and
// may be old.
func (w *waiter) update(server api.Server) {
	state := domain.StateOf(server.Status, "")
	if server.Instance != nil {
		state = domain.InstanceState(server.Instance.State)
	}
	w.State, w.note = string(state), ""
	w.hasMoved = w.hasMoved || state != domain.InstanceError
	if w.updateResize(server, state) || w.updateRebuild(server, state) {
		return
	}
	goal, hasGoal := goals[w.action]
	isDelete, isGoal := w.action == api.ServerActionActionDelete, state == goal || !hasGoal
	switch {
	case state == domain.InstanceDeleted:
		w.setGone()
	case isGoal && w.action == api.ServerActionActionDeploy && !isReady(server):
		w.note = ", and its agent has not said yet that it is ready"
	case isGoal, isDelete && server.Status == "SOFT_DELETED":
		w.isDone = true
	case state == domain.InstanceError && (w.hasMoved || w.action == api.ServerActionActionStart):
		detail := cmp.Or(domain.Deref(server.Fault).Message, "the server is in ERROR")
		w.fail(api.Code(api.InstanceErrorCodeNovaFault), detail)
	case w.ActionID != "" || server.Instance == nil || state == domain.InstanceError || !slices.Contains(stable, state):
		w.restsSince = time.Time{}
	case isDelete && w.rests() < deleteGrace: // Nova ends a resize before it deletes a server
		w.note = ", and Nova has not deleted it"
	default:
		w.fail(api.CodeConflict, "the server is "+w.State+" again")
	}
}

// deleteGrace is how long a server may run on after Nova has accepted its deletion.
const deleteGrace = 30 * time.Second

// rests returns for how long the server has been in a state that lasts.
func (w *waiter) rests() time.Duration {
	if w.restsSince.IsZero() {
		w.restsSince = time.Now()
	}
	return time.Since(w.restsSince)
}

// updateResize judges a server whose resize begins or ends; false when that needs no other judgement than update's.
func (w *waiter) updateResize(server api.Server, state domain.InstanceState) bool {
	isSettled := state == domain.InstanceActive || state == domain.InstanceStopped
	switch action := domain.Action(w.action); {
	case action == domain.ConfirmResize, action == domain.RevertResize:
		w.isDone = isSettled // it may have been stopped before
		return isSettled
	case action != domain.Resize:
		return false
	case server.Status == verifyResize:
		w.isDone, w.next = true, "confirm-resize or revert-resize ends it"
	case state == domain.InstanceResizing:
		w.flavor = cmp.Or(w.flavor, server.Flavor.Name)
		w.note = ", and Nova has not finished it"
	case isSettled && w.flavor != "" && w.flavor != server.Flavor.Name: // the cloud confirms automatically
		w.isDone = true
	default:
		return false
	}
	return true
}

// updateRebuild ends the wait for a rebuild of a stopped server, which is stopped again.
func (w *waiter) updateRebuild(server api.Server, state domain.InstanceState) bool {
	if domain.Action(w.action) != domain.Rebuild {
		return false
	}
	w.hasRebuilt = w.hasRebuilt || server.Status == "REBUILD"
	w.isDone = w.hasRebuilt && state == domain.InstanceStopped
	return w.isDone
}

// isReady reports whether the latest agent has come up.
func isReady(server api.Server) bool {
	agent := domain.Deref(server.Instance).Agent
	return agent != nil && agent.ReadyAt != nil
}
