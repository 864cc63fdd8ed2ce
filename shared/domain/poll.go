package domain

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Poll is how far the servers of a project with tracked instances were read. Times are the database's; zero: never.
type Poll struct {
	ProjectID string    // "" is the whole cloud
	Since     time.Time // changes before this moment are known
	FullAt    time.Time // when all of its servers were last read, changed or not
	Uncertain int       // instances that are unknown, or whose servers Nova did not know

	FailingSince time.Time // the first of the attempts in a row that failed
	NotBefore    time.Time // it is not tried again earlier
	GoneAt       time.Time // when Keystone first said that there is no such project
	SweepAt      time.Time // when the reading of all servers began that has not ended
	SweepMarker  string    // the last server that it has read
}

// longestRetry is the longest pause between two attempts to read a project that cannot be entered.
const longestRetry = 15 * time.Minute

// Failed notes an attempt that failed. A project that cannot be entered is tried ever less often: after half of the time
// for which that has lasted.
func (p *Poll) Failed(now time.Time, cannotEnter bool) {
	if p.FailingSince.IsZero() {
		p.FailingSince = now
	}
	if cannotEnter {
		p.NotBefore = now.Add(min(now.Sub(p.FailingSince)/2, longestRetry))
	}
}

// Succeeded notes a successful attempt.
func (p *Poll) Succeeded() {
	p.FailingSince, p.NotBefore, p.GoneAt = time.Time{}, time.Time{}, time.Time{}
}

// UnreachableFor says whether every attempt failed for at least d.
func (p *Poll) UnreachableFor(now time.Time, d time.Duration) bool {
	return !p.FailingSince.IsZero() && now.Sub(p.FailingSince) >= d
}

// ProjectGone applies that the instance's project is not in Keystone any more.
func (i *Instance) ProjectGone() {
	i.State, i.RawStatus, i.MissedAt = InstanceDeleted, "DELETED", time.Time{}
	i.Problem = &Problem{Code: "project_gone", Detail: "the project was deleted in Keystone"}
}

// moving are the states that Nova soon ends by itself.
var moving = []InstanceState{InstanceRequested, InstanceBuilding, InstanceRebooting, InstanceUpdating, InstanceDeleting}

// MovingStates are the states that Nova soon ends by itself, so that it pays to look again.
func MovingStates() []InstanceState { return slices.Clone(moving) }

// Missed applies that Nova did not know the instance's server at the moment now. It counts as deleted at a second look
// that comes no sooner than patience after the first. changed is false when that says nothing new.
func (i *Instance) Missed(now time.Time, patience time.Duration) (changed bool) {
	switch {
	case i.MissedAt.IsZero():
		i.MissedAt = now
		return true
	case now.Sub(i.MissedAt) < patience:
		return false
	}
	i.MissedAt = time.Time{}
	return i.Seen(Server{ID: i.ServerID, Status: "DELETED", Partial: true})
}

// Found applies what Nova says of the instance's server, which it knows. changed is false when that is nothing new.
func (i *Instance) Found(s Server) (changed bool) {
	missed := !i.MissedAt.IsZero()
	i.MissedAt = time.Time{}
	return i.Seen(s) || missed
}

const orderTag = "cloudfn-order:"

// OrderTag is the tag by which all servers of an order are found at once. Each has its instance's id as a tag besides, and
// the CallTag of the call that made it.
func OrderTag(id uuid.UUID) string { return orderTag + id.String() }

// Made says for which instance of which order the server was made, by its tags. ok is false when they do not say just one.
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
