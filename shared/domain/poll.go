package domain

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Poll is the progress of reading the servers of a project with tracked instances. Times are the database's; zero =
// never.
type Poll struct {
	ProjectID string    // "" = the whole cloud
	Since     time.Time // changes before this are known
	FullAt    time.Time // when all servers were last read
	Uncertain int       // instances in unknown, or whose servers Nova did not find

	FailingSince time.Time // the first of the consecutive failed attempts
	NotBefore    time.Time // of the next attempt
	GoneAt       time.Time // when Keystone first answered 404 for the project
	SweepAt      time.Time // when the current read of all servers began
	SweepMarker  string    // the last server that it read
}

// longestRetry is the longest pause between two attempts to log in to a project.
const longestRetry = 15 * time.Minute

// Failed records a failed attempt. If the login to the project failed, the next attempt waits for half of the time
// since the first failure.
func (p *Poll) Failed(now time.Time, isLoginFailed bool) {
	if p.FailingSince.IsZero() {
		p.FailingSince = now
	}
	if isLoginFailed {
		p.NotBefore = now.Add(min(now.Sub(p.FailingSince)/2, longestRetry))
	}
}

// Succeeded records a successful attempt.
func (p *Poll) Succeeded() {
	p.FailingSince, p.NotBefore, p.GoneAt = time.Time{}, time.Time{}, time.Time{}
}

// UnreachableFor reports whether every attempt failed for at least d.
func (p *Poll) UnreachableFor(now time.Time, d time.Duration) bool {
	return !p.FailingSince.IsZero() && now.Sub(p.FailingSince) >= d
}

// ProjectGone marks the instance as deleted with its project.
func (i *Instance) ProjectGone() {
	i.State, i.RawStatus, i.MissedAt = InstanceDeleted, "DELETED", time.Time{}
	i.Problem = &Problem{Code: "project_gone", Detail: "the project was deleted in Keystone"}
}

// moving are the states that Nova soon leaves by itself.
var moving = []InstanceState{InstanceRequested, InstanceBuilding, InstanceRebooting, InstanceUpdating, InstanceDeleting}

// MovingStates returns the states that Nova soon leaves by itself. Their instances are polled more often.
func MovingStates() []InstanceState { return slices.Clone(moving) }

// MissedFor is the time between two reads that do not find an object, to count as deleted. They have to be independent:
// a database that has failed over, or that lags, shows nothing of objects that exist.
const MissedFor = 30 * time.Second

// Missed records that Nova did not find the instance's server. Not found for at least MissedFor, it is marked as
// deleted. changed is false if nothing changed.
func (i *Instance) Missed(now time.Time) (changed bool) {
	switch {
	case i.MissedAt.IsZero():
		i.MissedAt = now
		return true
	case now.Sub(i.MissedAt) < MissedFor:
		return false
	}
	i.MissedAt = time.Time{}
	return i.Seen(Server{ID: i.ServerID, Status: "DELETED", Partial: true})
}

// Found updates the instance from its server, which Nova found. changed is false if nothing changed.
func (i *Instance) Found(s Server) (changed bool) {
	missed := !i.MissedAt.IsZero()
	i.MissedAt = time.Time{}
	return i.Seen(s) || missed
}

const orderTag = "cloudfn-order:"

// OrderTag returns the tag of all servers of an order. Each also has its instance's id and its CallTag.
func OrderTag(id uuid.UUID) string { return orderTag + id.String() }

// Made returns the order and the instance in the server's tags. ok is false unless there is exactly one of each.
func (s Server) Made() (order, instance uuid.UUID, ok bool) {
	var orders, instances []uuid.UUID
	for _, tag := range s.Tags {
		text, ofOrder := strings.CutPrefix(tag, orderTag)
		id, err := uuid.Parse(text)
		switch {
		case err != nil || text != id.String():
		case ofOrder:
			orders = append(orders, id)
		default:
			instances = append(instances, id)
		}
	}
	if len(orders) != 1 || len(instances) != 1 {
		return order, instance, false
	}
	return orders[0], instances[0], true
}
