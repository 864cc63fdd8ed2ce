package domain

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// CreateCall is one call to Nova that makes a server. It is stored before it is sent. Its times are the database's.
type CreateCall struct {
	ID         uuid.UUID // a tag of the server
	InstanceID uuid.UUID
	Name       string // of the server
	UserID     string // who makes the call; "" = not known
	BeganAt    time.Time
	Until      time.Time // while the call has no answer, no other one is made for the instance before this moment
	EndedAt    time.Time // when Nova answered; zero = its answer is not known
	ServerID   string    // the server that the call made; "" = none, or not known
}

// ErrCallOpen says that Nova may still be making the instance's server, so no other call may be made for it yet.
var ErrCallOpen = errors.New("nova may still be making the server")

const (
	// ClockSkew is how far Nova's clock may be from the database's.
	ClockSkew = 10 * time.Minute
	// rollbackPatience is how much longer than its fence an unanswered call keeps a rollback from ending. Once the order is
	// final, no server is deleted any more.
	rollbackPatience = 30 * time.Second

	callTag = "cloudfn-call:"
)

// CallTag is the tag of the server that a create call makes.
func CallTag(id uuid.UUID) string { return callTag + id.String() }

// isOpen says whether Nova may still be at work on the call at the moment now.
func (c CreateCall) isOpen(now time.Time) bool { return c.EndedAt.IsZero() && now.Before(c.Until) }

// may says whether the call can have made the server.
func (c CreateCall) may(s Server) bool {
	if c.ServerID != "" || !c.EndedAt.IsZero() {
		return c.ServerID == s.ID
	}
	return s.CreatedAt.Before(c.Until.Add(ClockSkew))
}

// CallTagged says which create call the server names in its tags.
func (s Server) CallTagged() (id uuid.UUID, ok bool) {
	for _, tag := range s.Tags {
		if text, found := strings.CutPrefix(tag, callTag); found {
			id, err := uuid.Parse(text)
			return id, err == nil && text == id.String()
		}
	}
	return id, false
}

// callOf finds the instance's create call that the server names in its tags, if that call can have made it.
func (o Order) callOf(i Instance, s Server) (CreateCall, bool) {
	id, tagged := s.CallTagged()
	n := slices.IndexFunc(o.Calls, func(c CreateCall) bool { return c.ID == id && c.InstanceID == i.ID })
	if !tagged || n < 0 || !o.Calls[n].may(s) {
		return CreateCall{}, false
	}
	return o.Calls[n], true
}

// OwnServer chooses the instance's server among found: the stored one, else the oldest that one of the instance's create calls
// can have made. A copy of the tags is younger than what it copies. The returned instance names that call in CallID.
// Of an order that was stored without its calls it is the oldest with the instance's tag, while the order runs.
func (o Order) OwnServer(i Instance, found []Server) (own Server, adopted Instance, ok bool) {
	for _, s := range oldestFirst(found) {
		switch {
		case i.ServerID != "":
			if s.ID == i.ServerID {
				return s, i, true
			}
		case !slices.Contains(s.Tags, i.ID.String()), StateOf(s.Status, "") == InstanceDeleted: // Nova lists it for a moment more
		default:
			call, proven := o.callOf(i, s)
			if proven || !o.CallsRecorded && o.Status == OrderRunning {
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

// Extras lists the servers among found that carry the instance's tags and are not its server.
func (o Order) Extras(i Instance, found []Server) []Server {
	own, _, _ := o.OwnServer(i, found)
	return slices.DeleteFunc(slices.Clone(found), func(s Server) bool {
		state := StateOf(s.Status, s.Task)
		return s.ID == own.ID || s.ID == i.ServerID || !slices.Contains(s.Tags, i.ID.String()) ||
			state == InstanceDeleting || state == InstanceDeleted
	})
}

// Duplicate says whether a create call of the running order provably made the server although the instance has another one, and
// gives that call. It is proven by the call's own tag, no tag besides ours, and the call's name, user and time.
func (o Order) Duplicate(i Instance, s Server) (CreateCall, bool) {
	c, ok := o.callOf(i, s)
	switch {
	case !ok, o.Status != OrderRunning, i.ServerID == "", s.ID == i.ServerID, c.ServerID == i.ServerID:
	case len(s.Tags) != 3 || !slices.Contains(s.Tags, OrderTag(o.ID)) || !slices.Contains(s.Tags, i.ID.String()):
	case s.Name != c.Name || c.UserID != "" && s.UserID != "" && c.UserID != s.UserID:
	case s.CreatedAt.Before(c.BeganAt.Add(-ClockSkew)) || !s.CreatedAt.Before(c.Until.Add(ClockSkew)):
	default:
		return c, true
	}
	return CreateCall{}, false
}

// IsOldest says whether none of the servers is older than the one given.
func (s Server) IsOldest(servers []Server) bool {
	sorted := oldestFirst(append(slices.Clone(servers), s))
	return sorted[0].ID == s.ID
}

// HasOpenCall says whether Nova may still be making a server of the order, as far as was known when the order was read.
func (o Order) HasOpenCall() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return o.awaits(i, 0) })
}

// WaitsForCalls says whether the order, or its rollback, cannot end before an unanswered create call is surely over.
func (o Order) WaitsForCalls() bool {
	return slices.ContainsFunc(o.Instances, func(i Instance) bool { return o.awaits(i, rollbackPatience) })
}

// CallsEndIn is how long Nova may still be making a server of the order; 0 = it is not.
func (o Order) CallsEndIn() (longest time.Duration) {
	for _, c := range o.Calls {
		if c.isOpen(o.ReadAt) {
			longest = max(longest, c.Until.Sub(o.ReadAt))
		}
	}
	return longest
}

// awaits says whether the instance is undecided and has a create call without an answer that is not older than its fence and patience.
func (o Order) awaits(i Instance, patience time.Duration) bool {
	return !i.Decided() && slices.ContainsFunc(o.Calls, func(c CreateCall) bool {
		return c.InstanceID == i.ID && c.isOpen(o.ReadAt.Add(-patience))
	})
}
