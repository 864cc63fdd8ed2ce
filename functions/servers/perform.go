package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// actionsAtOnce limits how many servers of one request are worked on in parallel: each takes Nova two requests.
const actionsAtOnce = 8

// target is the server that an id of a request identifies.
type target struct {
	id       string          // as the caller gave it
	serverID string          // "" for an instance without a server
	instance domain.Instance // zero for a server that is not tracked
}

// actionRequest is one action on servers.
type actionRequest struct {
	domain.ActionRequest

	force     bool    // of Delete: also a server that existed before it was connected
	imageName string  // of Snapshot; "" = the server's name
	deploy    *deploy // of Deploy
	key       key     // of an action with an id from the caller
}

// outcome is the result of an action on one server.
type outcome struct {
	ID         string
	State      domain.InstanceState
	Changed    bool       // Nova has accepted the action, or it is stored; false when there was nothing to do
	ActionID   *uuid.UUID // of an action that is stored
	ImageID    string     // of Snapshot, once Nova has accepted it
	isTracked  bool
	isRepeated bool // the same request has done the action before
	err        error
}

// Do does one action to servers, and returns the outcome for each, in their order.
func (s service) Do(ctx context.Context, a access, req actionRequest, ids []string) ([]outcome, error) {
	if err := a.authorize(req.Action); err != nil {
		return nil, err
	}
	if req.deploy != nil && req.deploy.serverImage != "" {
		if err := a.Connection.Limits.CheckImage("server_image", req.deploy.serverImage); err != nil {
			return nil, err
		}
	}
	targets, err := s.targets(ctx, a, ids)
	if err != nil {
		return nil, err
	}
	outcomes := make([]outcome, len(targets))
	var group errgroup.Group
	group.SetLimit(actionsAtOnce)
	for i, t := range targets {
		one := req
		one.key = req.key.forServer(t.id)
		group.Go(func() error { outcomes[i] = task{s, a, one, t}.do(ctx); return nil })
	}
	_ = group.Wait() // each outcome has its own error
	if slices.ContainsFunc(outcomes, func(o outcome) bool { return o.Changed && o.isTracked }) {
		s.wake("deliver-events", a.worker())
	}
	return outcomes, nil
}

// worker is the function that continues what the access has begun.
func (a access) worker() string {
	if a.cloud == nil {
		return "run-connections"
	}
	return "poll-instances"
}

// targets finds the servers by their own ids, or their instances'. A server must not be given twice.
func (s service) targets(ctx context.Context, a access, ids []string) ([]target, error) {
	found, err := s.instances.Find(ctx, a.Filter(), ids)
	if err != nil {
		return nil, err
	}
	targets := make([]target, len(ids))
	for n, i := range found {
		t := target{id: ids[n], serverID: i.ServerID, instance: i}
		if i.ID == uuid.Nil {
			t.serverID = ids[n]
		}
		isSame := func(o target) bool { return o.id == t.id || t.serverID != "" && o.serverID == t.serverID }
		if first := slices.IndexFunc(targets[:n], isSame); first >= 0 {
			return nil, apperr.InvalidField(
				fmt.Sprintf("ids[%d]", n), fmt.Sprintf("is the same server as ids[%d]", first))
		}
		targets[n] = t
	}
	return targets, nil
}

// task is one action on one server.
type task struct {
	service
	access
	actionRequest
	target
}

// do stores the action for run-connections, or runs it with the caller's own token.
func (t task) do(ctx context.Context) outcome {
	o := outcome{ID: t.id, State: t.instance.State, isTracked: t.instance.ID != uuid.Nil}
	switch {
	case t.cloud == nil:
		o.err = t.store(ctx, &o)
	case t.key.id != uuid.Nil:
		o.err = t.runOnce(ctx, &o)
	default:
		o.err = t.run(ctx, &o, nil)
	}
	return o
}

// run has the engine do the action. A deployment that Nova certainly does not make is dropped.
func (t task) run(ctx context.Context, o *outcome, attempt *domain.KeyedAction) error {
	var made domain.Deployment
	action := t.asAction()
	if t.deploy != nil {
		action.Deployment.ImageID = t.deploy.serverImage
		action.Deployment.Prepare = func(ctx context.Context) (r domain.Rebuild, err error) {
			made, r.UserData, err = t.agents.prepare(ctx, *t.deploy, t.ProjectID, t.instance.ID, uuid.Nil)
			// the attempt's mark on the server shows later whether Nova accepted it
			if r.ID = made.ID; err == nil && attempt != nil {
				err = t.keyed.RecordDeployment(ctx, *attempt, made.ID)
			}
			if errors.Is(err, domain.ErrFenced) {
				err = apperr.New(apperr.Conflict, "action %s is being worked on: send the same request again",
					attempt.ID)
			}
			return r, err
		}
	}
	progress, err := t.engine().Run(ctx, t.cloud, action)
	t.agents.dropFailed(ctx, made, err)
	o.State, o.Changed, o.ImageID = progress.State, progress.Accepted, progress.ImageID
	return err
}

func (s service) engine() actions.Engine { return actions.Engine{Instances: s.instances} }

func (t task) asAction() actions.Action {
	return actions.Action{
		ActionRequest: t.ActionRequest, ID: t.key.id, Actor: t.Actor(), ServerID: t.serverID, Instance: t.instance,
		ProjectID: t.ProjectID, Force: t.force, ImageName: t.imageName,
	}
}
