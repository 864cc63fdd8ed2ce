package servers

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// actionsAtOnce is how many servers of one request are worked on at a time: each takes Nova two requests.
const actionsAtOnce = 8

// target is the server that an id of a request stands for.
type target struct {
	id       string          // as the caller gave it
	serverID string          // "" for an instance without a server
	instance domain.Instance // zero for a server that is not tracked
}

// actionRequest is one action on servers.
type actionRequest struct {
	domain.ActionRequest

	force      bool      // of delete: also one that we have not made
	connection uuid.UUID // that it is done through; zero = with the caller's own token
	deploy     *deploy   // of Deploy
	key        key       // of an action that can be sent again
}

// outcome is what an action came to on one server.
type outcome struct {
	ID       string
	State    domain.InstanceState
	Changed  bool       // Nova has accepted it, or will be asked to; false when there was nothing to do
	ActionID *uuid.UUID // of what is done through a connection
	tracked  bool
	repeated bool // the action was done before: this is what it came to
	err      error
}

// Do does one action to servers, and gives the outcome for each, in their order.
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
	do, wakes := s.perform, []string{"deliver-events", "poll-instances"}
	if a.cloud == nil {
		do, wakes = s.enqueue, []string{"run-connections", "deliver-events"}
	}
	outcomes := make([]outcome, len(targets))
	var group errgroup.Group
	group.SetLimit(actionsAtOnce)
	for i, t := range targets {
		group.Go(func() error { outcomes[i] = do(ctx, a, req, t); return nil })
	}
	_ = group.Wait() // each outcome has its own error
	if slices.ContainsFunc(outcomes, func(o outcome) bool { return o.Changed && o.tracked }) {
		s.wake(wakes...)
	}
	return outcomes, nil
}

// targets finds what ids stand for: a server's own, or that of an instance. A server that two ids stand for is refused.
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
			return nil, apperr.InvalidField(fmt.Sprintf("ids[%d]", n), fmt.Sprintf("is the same server as ids[%d]", first))
		}
		targets[n] = t
	}
	return targets, nil
}

// performing is one action that is done to one server with the caller's own token.
type performing struct {
	service
	access
	actionRequest
	target

	attempt *domain.KeyedAction // of one that can be sent again
}

func (s service) perform(ctx context.Context, a access, req actionRequest, t target) outcome {
	p := performing{service: s, access: a, actionRequest: req, target: t}
	o := outcome{ID: t.id, tracked: t.instance.ID != uuid.Nil}
	if req.key.id != uuid.Nil {
		return p.once(ctx, o)
	}
	o.State, o.Changed, o.err = p.run(ctx)
	return o
}

func (s service) engine() actions.Engine { return actions.Engine{Instances: s.instances} }

// run has the engine do it. A deployment that Nova surely does not make is forgotten.
func (p performing) run(ctx context.Context) (state domain.InstanceState, changed bool, err error) {
	var made *domain.Deployment
	action := p.asAction()
	if p.deploy != nil {
		action.Deployment = actions.Deployment{ImageID: p.deploy.serverImage, Prepare: func(ctx context.Context) (domain.Rebuild, error) {
			d, userData, err := p.agents.prepare(ctx, *p.deploy, p.ProjectID, p.instance.ID, uuid.Nil)
			if err != nil {
				return domain.Rebuild{}, err
			}
			made = &d
			return domain.Rebuild{ID: d.ID, UserData: userData}, p.recordDeployment(ctx, d.ID)
		}}
	}
	progress, err := p.service.engine().Run(ctx, p.access.cloud, action)
	if made != nil && err != nil && !apperr.Retryable(err) { // else it is open whether Nova does it
		p.agents.drop(ctx, *made)
	}
	if err != nil {
		return "", false, err
	}
	return progress.State, progress.Accepted, nil
}

func (p performing) asAction() actions.Action {
	return actions.Action{
		ActionRequest: p.ActionRequest, ID: p.key.id, Actor: p.Actor(), ServerID: p.serverID, Instance: p.instance, ProjectID: p.ProjectID,
		Force: p.force,
	}
}
