package domain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// CreateCall is a call to Nova that creates a server. It is stored before it is sent. Its times are the database's.
type CreateCall struct {
	ID         uuid.UUID // a tag of the server
	InstanceID uuid.UUID
	Name       string // of the server
	UserID     string // the caller; "" = unknown
	BeganAt    time.Time
	Until      time.Time // without an answer, no other call for the instance is made before this
	EndedAt    time.Time // when Nova answered; zero = unknown
	ServerID   string    // "" = none, or unknown
}

// ErrCallOpen means that Nova may still be creating the instance's server, so no other call may be made for it yet.
var ErrCallOpen = errors.New("nova may still be creating the server")

const (
	// ClockSkew is the largest difference between Nova's clock and the database's.
	ClockSkew = 10 * time.Minute
	// rollbackGrace is how long after its Until an unanswered call still delays the end of a rollback. Servers of a
	// final order are not deleted.
	rollbackGrace = 30 * time.Second
	// attachGrace is how long a rollback waits for a server that is built with volumes: one that Nova deletes while it
	// attaches a volume leaves the volume "attaching" for good.
	attachGrace = 5 * time.Minute

	callTag = "cloudfn-call:"
)

// ManagedTag is the tag of all objects that managed resources are made of.
const ManagedTag = "cloudfn:managed"

// ServerTags returns the tags that the order's create call gives its server: they identify it by its instance, its
// order, and the call. The caller's own follow.
func (o Order) ServerTags(i Instance, c CreateCall) []string {
	tags := []string{c.InstanceID.String(), OrderTag(o.ID), CallTag(c.ID)}
	if o.Spec.IsManaged {
		tags = append(tags, ManagedTag)
	}
	return append(tags, i.Spec.Tags...)
}

// sameTags reports whether the tags are the same, in any order.
func sameTags(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// CallTag returns the tag that a create call gives its server.
func CallTag(id uuid.UUID) string { return callTag + id.String() }

// isOpen reports whether Nova may still be working on the call.
func (c CreateCall) isOpen(now time.Time) bool { return c.EndedAt.IsZero() && now.Before(c.Until) }

// may reports whether the call may have created the server.
func (c CreateCall) may(s Server) bool {
	if c.ServerID != "" || !c.EndedAt.IsZero() {
		return c.ServerID == s.ID
	}
	return s.CreatedAt.Before(c.Until.Add(ClockSkew))
}

// CallTagged returns the id of the create call in the server's tags.
func (s Server) CallTagged() (id uuid.UUID, ok bool) {
	for _, tag := range s.Tags {
		if text, found := strings.CutPrefix(tag, callTag); found {
			id, err := uuid.Parse(text)
			return id, err == nil && text == id.String()
		}
	}
	return id, false
}

// callOf returns the instance's create call that the server's tags name, if it may have created the server.
func (o Order) callOf(i Instance, s Server) (CreateCall, bool) {
	id, tagged := s.CallTagged()
	n := slices.IndexFunc(o.Calls, func(c CreateCall) bool { return c.ID == id && c.InstanceID == i.ID })
	if !tagged || n < 0 || !o.Calls[n].may(s) {
		return CreateCall{}, false
	}
	return o.Calls[n], true
}

// OwnServer chooses the instance's server among found: the stored one, else the oldest that one of the instance's
// create calls may have created, because servers with copied tags are younger. It sets CallID to that call.
func (o Order) OwnServer(i Instance, found []Server) (own Server, adopted Instance, ok bool) {
	for _, s := range oldestFirst(found) {
		switch {
		case i.ServerID != "":
			if s.ID == i.ServerID {
				return s, i, true
			}
		// Nova still lists it for a moment
		case !slices.Contains(s.Tags, i.ID.String()), StateOf(s.Status, "") == InstanceDeleted:
		default:
			if call, proven := o.callOf(i, s); proven {
				i.CallID = call.ID
				return s, i, true
			}
		}
	}
	return own, i, false
}

func oldestFirst(servers []Server) []Server {
	return slices.SortedFunc(slices.Values(servers), func(a, b Server) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
}

// Extras lists the servers among found that have the instance's tags and are not its server.
func (o Order) Extras(i Instance, found []Server) []Server {
	own, _, _ := o.OwnServer(i, found)
	return slices.DeleteFunc(slices.Clone(found), func(s Server) bool {
		state := StateOf(s.Status, s.Task)
		return s.ID == own.ID || s.ID == i.ServerID || !slices.Contains(s.Tags, i.ID.String()) ||
			state == InstanceDeleting || state == InstanceDeleted
	})
}

// Duplicate reports whether a create call of the running order certainly created the server although the instance has
// another one, and returns that call. The proof is the call's tag, no tags besides, and the call's name, user and time.
func (o Order) Duplicate(i Instance, s Server) (CreateCall, bool) {
	c, ok := o.callOf(i, s)
	switch {
	case !ok, o.Status != OrderRunning, i.ServerID == "", s.ID == i.ServerID, c.ServerID == i.ServerID:
	case !sameTags(s.Tags, o.ServerTags(i, c)):
	case s.Name != c.Name || c.UserID != "" && s.UserID != "" && c.UserID != s.UserID:
	case s.CreatedAt.Before(c.BeganAt.Add(-ClockSkew)) || !s.CreatedAt.Before(c.Until.Add(ClockSkew)):
	default:
		return c, true
	}
	return CreateCall{}, false
}

// IsOldest reports whether the server is older than all of the others.
func (s Server) IsOldest(servers []Server) bool {
	sorted := oldestFirst(append(slices.Clone(servers), s))
	return sorted[0].ID == s.ID
}

// HasOpenCall reports whether Nova may still be creating a server of the order, as of when the order was read.
func (o Order) HasOpenCall() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return o.awaits(i, 0) })
}

// WaitsForCalls reports whether the order or its rollback must wait for an unanswered create call.
func (o Order) WaitsForCalls() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return o.awaits(i, rollbackGrace) })
}

// CallsEndIn returns how long Nova may still be creating a server of the order; 0 = it is not.
func (o Order) CallsEndIn() (longest time.Duration) {
	for _, c := range o.Calls {
		if c.isOpen(o.ReadAt) {
			longest = max(longest, c.Until.Sub(o.ReadAt))
		}
	}
	return longest
}

// awaits reports whether the instance is undecided and has an unanswered create call that ended less than the grace
// period ago.
func (o Order) awaits(i Instance, grace time.Duration) bool {
	return !i.Decided() && slices.ContainsFunc(o.Calls, func(c CreateCall) bool {
		return c.InstanceID == i.ID && c.isOpen(o.ReadAt.Add(-grace))
	})
}

const (
	// Nova gets so many calls to delete a server. The pause after each is twice the one before; together they take
	// three minutes.
	maxDeleteTries   = 6
	firstDeletePause = 3 * time.Second
)

// NextDelete returns when the next call to delete the instance's server may be made, given the calls since a moment.
// exhausted reports whether no calls are left: the deletion has failed after that time.
func (i Instance) NextDelete(since time.Time) (at time.Time, exhausted bool) {
	if i.DeleteTries == 0 || i.DeleteTriedAt.Before(since) {
		return time.Time{}, false
	}
	tries := min(i.DeleteTries, maxDeleteTries)
	return i.DeleteTriedAt.Add(firstDeletePause << (tries - 1)), tries == maxDeleteTries
}

// RollingBack reports whether the order is being rolled back: it is all or nothing, and one of its instances failed or
// is deleted. It depends on the instances only, so any replica can resume a rollback.
func (o Order) RollingBack() bool {
	switch o.Status {
	case OrderDone, OrderPartial, OrderFailed:
		return false
	}
	return o.Spec.OnFailure == Rollback && slices.ContainsFunc(o.Instances, Instance.isFailedOrDeleted)
}

// isFailedOrDeleted reports whether the instance failed or is deleted.
func (i Instance) isFailedOrDeleted() bool {
	return i.lacksPart() || i.State == InstanceError || i.State == InstanceDeleting || i.State == InstanceDeleted
}

// left reports whether the instance may still have a server.
func (i Instance) left() bool {
	return i.State != InstanceDeleted && !i.isDisconnected() && (i.ServerID != "" || i.Problem == nil)
}

// Left lists the instances that may still have servers.
func (o Order) Left() (left []Instance) {
	for _, i := range o.Instances {
		if i.left() {
			left = append(left, i)
		}
	}
	return left
}

// undo returns the next step for an instance of an order that is rolled back.
func (o Order) undo(i Instance) Step {
	switch {
	case !i.Decided():
		return StepSkip
	case i.ServerID == "", i.State == InstanceDeleting, i.State == InstanceDeleted:
		return StepNone
	case i.State == InstanceBuilding && len(i.Spec.Volumes) > 0 && o.ReadAt.Sub(i.CreatedAt) < attachGrace:
		return StepNone
	}
	if at, exhausted := i.NextDelete(o.CreatedAt); exhausted || o.ReadAt.Before(at) {
		return StepNone
	}
	return StepDelete
}

// undeletable reports whether all calls to delete the instance's server have failed.
func (o Order) undeletable(i Instance) bool {
	at, exhausted := i.NextDelete(o.CreatedAt)
	return exhausted && i.State != InstanceDeleting && !o.ReadAt.Before(at)
}

// LeftProblem lists the servers that a failed rollback leaves, and why; nil if it has not failed.
func (o Order) LeftProblem() *Problem {
	if o.Status != OrderRunning || !o.RollingBack() || o.rolledBack() != OrderFailed {
		return nil
	}
	left := o.Left()
	servers := make([]string, len(left))
	for n, i := range left {
		why := "Nova does not say why"
		if i.Problem != nil && !i.Unexplained() {
			why = i.Problem.Detail
		}
		servers[n] = fmt.Sprintf("%s %s (%s)", i.Name, i.ServerID, why)
	}
	const format = "these servers still exist after %d calls to delete each: %s"
	return &Problem{Code: "not_rolled_back", Detail: fmt.Sprintf(format, maxDeleteTries, strings.Join(servers, "; "))}
}

// DeleteCounter counts calls to delete a server.
type DeleteCounter interface {
	RecordDeleteAttempt(ctx context.Context, i Instance, since time.Time) error
}

// DeleteServer calls Nova to delete the instance's server, and counts the call since a moment for NextDelete. A call
// that Nova may not have received does not count.
func (i Instance) DeleteServer(ctx context.Context, cloud interface {
	DeleteServer(ctx context.Context, id string) error
}, counter DeleteCounter, since time.Time,
) error {
	err := cloud.DeleteServer(ctx, i.ServerID)
	if err != nil && !apperr.Final(err) {
		return err
	}
	end, cancel := Detached(ctx)
	defer cancel()
	return errors.Join(err, counter.RecordDeleteAttempt(end, i, since))
}
