package servers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// changeCloud is the part of OpenStack that changes of what is written on servers need.
type changeCloud interface {
	UpdateServer(ctx context.Context, id string, name, description *string) error
	SetServerMetadata(ctx context.Context, id string, set map[string]string, remove []string) error
	TagServer(ctx context.Context, id, tag string) error
	UntagServer(ctx context.Context, id, tag string) error
}

// ownServer reads a server of the caller's project from Nova, by its own id or its instance's.
func (s service) ownServer(ctx context.Context, a access, id string) (domain.Server, error) {
	i, isTracked, err := s.withServer(ctx, a, id)
	if err != nil {
		return domain.Server{}, err
	}
	if !isTracked {
		return actions.ReadServer(ctx, a.cloud, id, a.ProjectID, false)
	}
	server, err := actions.ReadServer(ctx, a.cloud, i.ServerID, a.ProjectID, true)
	server.Instance = trackedAs(i)
	return server, err
}

// Change changes what is written on a server, and returns the server as Get does. Nova is called only for what differs,
// so a request that is repeated after it failed halfway does what is left.
func (s service) Change(ctx context.Context, a access, id string, c domain.ServerChange) (domain.Server, error) {
	before, err := s.ownServer(ctx, a, id)
	if err != nil {
		return domain.Server{}, err
	}
	if before.Partial {
		return domain.Server{}, apperr.Wrap(apperr.Conflict, actions.ErrCellDown,
			"the server's cell is down: what it has is not known")
	}
	update, faults := c.On(before)
	if len(faults) > 0 {
		wrong := apperr.InvalidField(faults[0].Field, faults[0].Detail)
		wrong.Fields = faults
		return domain.Server{}, wrong
	}
	if err := runSteps(ctx, changeSteps(a.cloud, before.ID, update)); err != nil {
		return domain.Server{}, err
	}
	if update.Name != nil { // of its instance, too
		s.wake(a.worker())
	}
	after, err := s.Get(ctx, a, id)
	if err != nil { // all is done
		return update.Apply(before), nil //nolint:nilerr // it is as Nova last showed it
	}
	fillNames(ctx, a.cloud, &after)
	return after, nil
}

// step is a call that changes one thing.
type step struct {
	what string
	do   func(context.Context) error
}

// changeSteps are the calls of an update. What is removed comes first: Nova limits how much a server has, and takes
// texts for the same that differ in their case.
func changeSteps(cloud changeCloud, id string, u domain.ServerUpdate) (all []step) {
	if u.Name != nil || u.Description != nil {
		what := "name and description"
		switch {
		case u.Description == nil:
			what = "name"
		case u.Name == nil:
			what = "description"
		}
		all = append(all, step{what, func(ctx context.Context) error {
			return cloud.UpdateServer(ctx, id, u.Name, u.Description)
		}})
	}
	for _, key := range u.Unset {
		all = append(all, step{"metadata." + key, func(ctx context.Context) error {
			return cloud.SetServerMetadata(ctx, id, nil, []string{key})
		}})
	}
	if len(u.Set) > 0 {
		what := "metadata." + strings.Join(slices.Sorted(maps.Keys(u.Set)), ", metadata.")
		all = append(all, step{what, func(ctx context.Context) error {
			return cloud.SetServerMetadata(ctx, id, u.Set, nil)
		}})
	}
	for _, tag := range u.Untag {
		all = append(all, step{fmt.Sprintf("tag %q", tag), func(ctx context.Context) error {
			return cloud.UntagServer(ctx, id, tag)
		}})
	}
	for _, tag := range u.Tag {
		all = append(all, step{fmt.Sprintf("tag %q", tag), func(ctx context.Context) error {
			return cloud.TagServer(ctx, id, tag)
		}})
	}
	return all
}

// runSteps ends with the first step that fails. The error says which one that is, and what is done.
func runSteps(ctx context.Context, all []step) error {
	var done []string
	for _, one := range all {
		err := one.do(ctx)
		if err == nil {
			done = append(done, one.what)
			continue
		}
		failed := *apperr.As(err)
		failed.Cause = err
		failed.Message = one.what + ": " + failed.Message
		if len(done) > 0 {
			failed.Message += fmt.Sprintf(" (changed before: %s; the same request changes the rest)",
				strings.Join(done, ", "))
		}
		return &failed
	}
	return nil
}
