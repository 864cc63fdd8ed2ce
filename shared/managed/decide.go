package managed

import (
	"cmp"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// target is what is declared of a resource, as far as a decision depends on it.
type target struct {
	managedID      uuid.UUID
	count          int // of members; 0 while the resource is deleted
	maxUnavailable int // while members are updated
	surges         bool
	revision       int
	declarations   int
	replaces       int // servers that an update changes or replaces: those of the revision that was real last
	isDeployment   bool
	oneByOne       bool // servers are made one after the other
	mostCreations  int  // that end in ERROR, before the resource stops; 0 = any number
	repairs        bool // what others changed is changed back
	isNew          bool // it was declared since it was last as declared
	newID          func() uuid.UUID
}

// observed is a member as it is stored and as it was listed.
type observed struct {
	member       domain.Member
	object       Object
	isFound      bool
	isMissed     bool // it is not found, and not for long enough to count as deleted
	isUnlisted   bool // no list shows its object, which may exist
	isOld        bool // a new object would have what it does not get any more
	isUnrecorded bool // its object works, which is not stored yet
	differences  []Difference
	added        []Difference // what others have added, and what stays
}

// action is what a step does.
type action string

const (
	actCreate action = "create" // store the member, and make its object
	actRecord action = "record" // store the member as it is
	actUpdate action = "update" // take one step to what is declared
	actDelete action = "delete" // store that the member is being deleted, and delete its object
	actForget action = "forget" // delete the member, whose object is deleted
)

// step is a step for one member.
type step struct {
	action      action
	member      domain.Member
	object      Object
	differences []Difference
	isReplaced  bool // of actDelete: the object may have data, and is deleted before another one takes its place
}

// plan is what a resource needs now.
type plan struct {
	steps     []step
	isMoving  bool      // something is under way: the plan is made again soon
	retryAt   time.Time // the earliest time at which a failed step is repeated; zero = none
	drift     []domain.Drift
	refused   []Difference
	problems  []string // why members are in error
	stopped   []string // why members that are ready do not work
	waits     []string // what steps wait for
	isPausing bool     // a creation has failed, and is not repeated yet
	isStalled bool     // the update has failed too often, and waits for another declaration
	// isUnchanged reports whether changes or creations were accepted and came to nothing too often; it waits as well.
	isUnchanged bool
	isFollowing bool     // OpenStack is at work on an object
	slow        []string // in which statuses objects have been for some time
	stuck       []string // in which they have been for too long
	available   int
	current     int      // members that are not being deleted
	updated     int      // of them, those with the declared revision
	old         int      // of them, those with earlier files of configmaps
	following   []string // fields that follow other resources, and are to be changed in place
	isGone      bool
}

const (
	shortestPause = 5 * time.Second // before a failed step is repeated
	longestPause  = 10 * time.Minute
	// A create call of a process that died may still make an object until then.
	openCall = time.Minute
)

// pauseAfter is the pause after so many failed attempts, 1 or more.
func pauseAfter(attempts int) time.Duration {
	return flow.Backoff(shortestPause, longestPause, attempts)
}

// decide says what a resource needs now. It depends on nothing else, so that a resource that no one worked on for
// hours, or that another process left half-way, is brought to what is declared.
func decide(t target, all []observed, now time.Time) plan {
	d := planner{target: t, now: now, inherited: map[int]domain.Member{}}
	var kept []observed
	for _, s := range all {
		if d.keeps(s) {
			kept = append(kept, s)
		}
	}
	allowed := t.count
	if t.surges && t.count > 0 && d.hasSurge(kept) {
		allowed++
	}
	kept = d.removeExcess(kept, allowed)
	for _, s := range kept {
		if s.isAvailable() {
			d.available++
		}
		if s.isOld || s.follows() {
			d.old++
		}
	}
	d.budget = d.available - t.count
	if !t.surges {
		d.budget += t.maxUnavailable
	}
	d.current = len(kept)
	d.isDown = !slices.ContainsFunc(kept, observed.lives)
	d.isStalled = slices.ContainsFunc(kept, d.stalls)
	slices.SortStableFunc(kept, func(a, b observed) int { return a.member.Ordinal - b.member.Ordinal })
	var staying []observed
	for _, s := range kept {
		if d.reconcile(s, kept) {
			staying = append(staying, s)
		}
	}
	d.create(staying, allowed)
	d.isGone = t.count == 0 && len(all) == len(d.steps) && !slices.ContainsFunc(d.steps, func(s step) bool {
		return s.action != actForget
	})
	return d.plan
}

// planner makes a plan.
type planner struct {
	target
	plan

	now    time.Time
	budget int  // members that work and may be interrupted now
	isDown bool // no member has an object that works, or may work again soon
	// inherited is what the replacement of a member of an ordinal inherits: attempts and last change.
	inherited map[int]domain.Member
}

func (d *planner) add(a action, s observed) {
	d.steps = append(d.steps, step{action: a, member: s.member, object: s.object, differences: s.differences})
	d.isMoving = true
}

// wait has the plan made again at the time.
func (d *planner) wait(at time.Time) {
	if d.retryAt.IsZero() || at.Before(d.retryAt) {
		d.retryAt = at
	}
}

// isDue reports whether the member's failed step may be repeated now.
func (d *planner) isDue(s observed) bool {
	if s.member.RetryAt.After(d.now) {
		d.wait(s.member.RetryAt)
		return false
	}
	return true
}

// keeps takes the steps of a member that is being deleted, or that has lost its object. It is true for all others.
func (d *planner) keeps(s observed) bool {
	isLost := !s.isFound && s.member.ObjectID != ""
	switch {
	case s.member.Written == deletedByOthers && s.isFound && s.object.Raw != nil: // it is there again, and replaced
		d.add(actForget, s)
		return false
	case s.member.Written == deletedByOthers:
		d.forget(s)
		return false
	case s.member.Status == domain.MemberDeleting && s.isMissed:
		d.wait(s.member.MissedAt.Add(domain.MissedFor))
		return false
	case s.member.Status == domain.MemberDeleting && s.isFound:
		if s.object.State == ObjectDeleting {
			d.follow(s)
		} else if d.isDue(s) {
			d.write(actDelete, s, nil)
		} else {
			d.explainPause(s)
		}
		return false
	case s.member.Status == domain.MemberDeleting || isLost && d.count == 0:
		d.forget(s)
		return false
	case isLost && !s.member.WasReady:
		return true // it is a failure
	case isLost && (d.isDeployment || d.repairs || d.isNew):
		d.forget(s)
		return false
	}
	return true
}

// mayAppear reports whether a create call without an answer, such as that of a process that died, may still make the
// member's object.
func (s observed) mayAppear() bool {
	return !s.isFound && s.member.ObjectID == "" && s.member.IsRequested
}

// deletedByOthers is the last change of a member whose object others have deleted, and that another one replaces.
const deletedByOthers = "deleted"

// forget deletes a member whose object is deleted, unless a create call without an answer may still make another one.
// Until that has ended, the member counts as deleted, also while a cell of Nova is down.
func (d *planner) forget(s observed) {
	until := s.member.UpdatedAt.Add(openCall)
	if !s.member.IsRequested || !until.After(d.now) {
		d.add(actForget, s)
		return
	}
	d.wait(until)
	d.isMoving = true
	if s.member.Status != domain.MemberDeleting {
		m := s.member
		m.Status, m.RetryAt, m.Written, m.Writes = domain.MemberDeleting, time.Time{}, deletedByOthers, 1
		d.record(s, m)
	}
}

// explainPause says why a step of a member is not taken yet: it has failed, or waits for something else.
func (d *planner) explainPause(s observed) {
	switch {
	case s.member.IsWaiting:
		d.waits = append(d.waits, s.member.Reason)
	case s.member.Attempts > 0 && s.isFound && s.object.State == ObjectReady:
		d.problems = append(d.problems, s.member.Reason)
	}
}

// lives reports whether the member's object works, or may do so again soon: one that is stopped counts.
func (s observed) lives() bool {
	return s.isFound && (s.object.State == ObjectReady || s.object.State == ObjectWorking && s.member.MayHaveData)
}

// isAvailable reports whether the member's object works.
func (s observed) isAvailable() bool {
	return s.isFound && s.object.State == ObjectReady && s.object.Reason == ""
}

// rank orders the members beyond the declared number: what is deleted anyway goes first, then what is broken and not
// kept, then what no list shows, which others may have deleted, and then what has to be replaced.
func (d *planner) rank(s observed) int {
	switch {
	case !s.isFound || s.isMissed || s.object.State == ObjectDeleting:
		return 0
	case s.isUnlisted && !s.member.MissedAt.IsZero(): // it was not found before, and is not read now
		return 0
	case s.object.State == ObjectError && (d.isDeployment || !d.isKept(s)):
		return 1
	case s.isUnlisted && d.isDeployment:
		return 2
	case !s.isAvailable() && (d.isDeployment || !s.member.MayHaveData): // what has data may work again
		return 3
	case d.mustReplace(s) && s.member.Revision != d.revision:
		return 4
	case d.mustReplace(s):
		return 5
	}
	return 6
}

// removeExcess deletes members until no more than allowed are left: broken ones, then those of the highest ordinals. Of
// one ordinal the younger goes, when the replacement of the older one is not declared any more. One that no list shows
// stays until it is known whether it exists.
func (d *planner) removeExcess(kept []observed, allowed int) []observed {
	if len(kept) <= allowed {
		return kept
	}
	sorted := slices.SortedStableFunc(slices.Values(kept), func(a, b observed) int {
		if by := d.rank(a) - d.rank(b); by != 0 {
			return by
		}
		return cmp.Or(b.member.Ordinal-a.member.Ordinal, b.member.CreatedAt.Compare(a.member.CreatedAt))
	})
	excess := len(kept) - allowed
	for _, s := range sorted[:excess] {
		if s.isUnlisted && !s.isMissed && d.count > 0 { // of several that no list shows, some may be deleted already
			d.follow(s)
			continue
		}
		d.remove(s)
	}
	return sorted[excess:]
}

// hasSurge reports whether there is, or is to be, one member more than declared: the replacement of another.
func (d *planner) hasSurge(kept []observed) bool {
	return slices.ContainsFunc(kept, func(s observed) bool {
		return d.mustReplace(s) && (len(kept) <= d.count || slices.ContainsFunc(kept, func(other observed) bool {
			return other.member.ID != s.member.ID && other.member.Ordinal == s.member.Ordinal &&
				!d.mustReplace(other) &&
				(!other.isStopped() || s.member.Revision != d.revision)
		}))
	})
}

// remove deletes a member with its object.
func (d *planner) remove(s observed) {
	if s.isMissed {
		d.wait(s.member.MissedAt.Add(domain.MissedFor))
		return
	}
	if s.isFound || s.mayAppear() {
		s.member.Status, s.member.RetryAt = domain.MemberDeleting, time.Time{}
		s.member.Written, s.member.Writes = s.trace(), 1
		d.add(actDelete, s)
		return
	}
	d.forget(s)
}

// removeFirst deletes a member with its object, before another one is made in its place.
func (d *planner) removeFirst(s observed) {
	d.remove(s)
	if last := len(d.steps) - 1; last >= 0 && d.steps[last].member.ID == s.member.ID {
		d.steps[last].isReplaced = d.steps[last].action == actDelete && s.member.MayHaveData
	}
}

// isOutdated reports whether the member has not the declared revision yet, was not ready yet, or follows a change of
// another resource by its replacement: its differences are not what others changed, and are removed however often that
// fails.
func (d *planner) isOutdated(s observed) bool {
	return s.member.Revision != d.revision || !s.member.WasReady || s.follows()
}

// follows reports whether another resource has changed in a way that takes another object.
func (s observed) follows() bool {
	return slices.ContainsFunc(s.differences, func(one Difference) bool { return one.Follows && one.Way == Replace })
}

// mustReplace reports whether the declaration can only be reached with another object. What OpenStack, or another user,
// has made otherwise than its own revision says is replaced only if it is to be repaired.
func (d *planner) mustReplace(s observed) bool {
	isDeclared := s.member.Revision != d.revision || d.repairs || !s.member.MayHaveData || s.follows()
	return s.isFound && s.object.State != ObjectError && isDeclared && !s.isStopped() && s.needsAnother()
}

// needsAnother reports whether only another object can have what is declared.
func (s observed) needsAnother() bool {
	return slices.ContainsFunc(s.differences, func(one Difference) bool { return one.Way == Replace }) &&
		!slices.ContainsFunc(s.differences, func(one Difference) bool { return one.Way == Refused })
}

// reconcile takes the next step of a member that is kept. It is false when the member is deleted to be made again.
func (d *planner) reconcile(s observed, kept []observed) bool {
	switch {
	case s.isMissed:
		d.wait(s.member.MissedAt.Add(domain.MissedFor))
		if !d.isOutdated(s) {
			d.updated++
		}
		return true
	case !s.isFound && s.member.ObjectID != "" && !s.member.WasReady:
		s.member.Reason = "it was deleted while it was made"
		if !s.member.IsRequested {
			s.member.CreateCalls = 0
		}
		return d.retryFailed(s)
	case !s.isFound && s.member.ObjectID != "": // others deleted it, and it is not repaired
		d.drift = append(d.drift, domain.Drift{Member: s.member.ID, Field: "exists", Declared: true, Actual: false})
		d.updated++
		return true
	case !s.isFound && s.member.Status == domain.MemberError:
		return d.retryFailed(s)
	case s.mayAppear() && s.member.Revision != d.revision && (s.member.IsWaiting || s.member.Attempts > 0 &&
		!s.member.UpdatedAt.Add(openCall).After(d.now)): // its call waits or has failed for long; another one may not
		d.remove(s)
		return false
	case !s.isFound, s.object.State == ObjectIncomplete:
		switch {
		case s.isStopped():
			d.stop(s)
		case !d.isDue(s):
			d.explainPause(s)
			d.isPausing = d.isPausing || s.member.Attempts > 0 && !s.member.IsWaiting
		case s.isFound:
			d.write(actCreate, s, nil)
		default:
			d.add(actCreate, s)
		}
		return true
	case s.object.State == ObjectError:
		return d.retryFailed(s)
	case s.object.State != ObjectReady:
		d.follow(s)
		return true
	}
	if s.object.Reason != "" {
		d.stopped = append(d.stopped, s.object.Reason)
	}
	for _, one := range s.added {
		d.drift = append(d.drift, domain.Drift{Member: s.member.ID, Field: one.Field, Actual: one.Actual})
	}
	return d.update(s, kept)
}
