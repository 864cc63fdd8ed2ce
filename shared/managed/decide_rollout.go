package managed

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// retryFailed makes a failed member again after a pause that grows, unless its object is kept.
func (d *planner) retryFailed(s observed) bool {
	reason := s.member.Reason
	if s.isFound && s.object.Reason != "" {
		reason = s.object.Reason
	}
	creations := s.failedCreations()
	switch {
	case d.isKept(s):
		d.problems = append(d.problems, reason)
		d.recordFault(s, reason)
		return true
	case s.member.MayHaveData && s.member.Reason != "" && s.member.Reason != reason: // why no other one is made yet
		d.problems = append(d.problems, reason+"; "+s.member.Reason)
	default:
		d.problems = append(d.problems, reason)
	}
	switch {
	case s.member.Status != domain.MemberError: // it is in ERROR since the last plan
		s.member.Status, s.member.Reason, s.member.ObjectID = domain.MemberError, reason, s.object.ID
		s.member.Attempts++
		s.member.RetryAt = d.now.Add(pauseAfter(s.member.Attempts))
		d.add(actRecord, s)
		return true
	case s.isFound && d.mostCreations > 0 && creations >= d.mostCreations:
		d.isUnchanged = true
		return true
	case d.stalls(s), !d.isDue(s):
		return true
	}
	d.inherited[s.member.Ordinal] = domain.Member{
		Attempts: s.member.Attempts, Written: failedCreation, Writes: creations,
	}
	d.removeFirst(s)
	return false
}

// fault is the last change of a member whose object may have data, and is in ERROR.
const fault = "fault"

// isKept reports whether an object in ERROR is left alone. One that worked once has what another one would lack, such
// as the data on its disk, and the error may end. It is made again if it is to be repaired, or if what is declared
// since its own revision takes another object in any case.
func (d *planner) isKept(s observed) bool {
	return s.isFound && s.member.MayHaveData && (s.object.Keep || !d.repairs && !s.needsAnother())
}

// recordFault stores why an object that is kept is in ERROR.
func (d *planner) recordFault(s observed, reason string) {
	if !d.isOutdated(s) {
		d.updated++
	}
	m := s.member
	m.Status, m.Reason, m.ObjectID = domain.MemberError, reason, s.object.ID
	if m.Written != fault {
		m.Written, m.Writes = fault, 0
	}
	d.record(s, m)
}

// declaredSince are the differences that a declaration has made, of those that an object in ERROR has. The others are
// differences from the member's own revision, too: OpenStack has left them.
func declaredSince(own, all []Difference) []Difference {
	return slices.DeleteFunc(all, func(one Difference) bool {
		return slices.ContainsFunc(own, func(before Difference) bool {
			return before.Field == one.Field && reflect.DeepEqual(before.Declared, one.Declared)
		})
	})
}

// failedCreation is the last change of a member whose predecessors ended in ERROR.
const failedCreation = "creation"

// failedCreations counts the objects that were made for a member and its predecessors, and ended in ERROR.
func (s observed) failedCreations() int {
	count := 0
	if s.member.Written == failedCreation {
		count = s.member.Writes
	}
	if s.isFound {
		count++
	}
	return count
}

// create makes the members that are missing: replacements with the ordinals of those that they replace, others with the
// lowest free ones.
func (d *planner) create(staying []observed, allowed int) {
	used := map[int]int{}
	for _, s := range staying {
		used[s.member.Ordinal]++
	}
	missing := d.count - len(staying)
	if allowed > d.count { // a replacement takes no other member's place
		missing = min(d.count-len(used), allowed-len(staying))
	}
	if allowed > d.count && len(staying) == d.count && missing == 0 {
		for _, s := range staying {
			if d.mustReplace(s) && used[s.member.Ordinal] == 1 {
				d.inherit(s)
				d.addNew(s.member.Ordinal)
				return
			}
		}
	}
	if d.oneByOne && missing > 0 {
		missing = 1
		if slices.ContainsFunc(staying, d.isPlacing) {
			return
		}
	}
	for ordinal := 0; missing > 0; ordinal++ {
		if used[ordinal] == 0 {
			d.addNew(ordinal)
			missing--
		}
	}
}

// placingFor is how long a server that builds keeps the next one of a group waiting.
const placingFor = 2 * time.Minute

// isPlacing reports whether Nova has yet to place a server. Its scheduler counts the servers of a group on a host when
// nova-compute has reported them, which it does when they are ACTIVE.
func (d *planner) isPlacing(s observed) bool {
	switch {
	case s.member.Status != domain.MemberCreating:
		return false
	case s.isFound:
		isRecent := s.object.ChangedAt.IsZero() || d.now.Sub(s.object.ChangedAt) < placingFor
		return s.object.State == ObjectWorking && isRecent
	case s.member.RetryAt.After(d.now): // its creation waits or has failed, unless Nova may have taken the call
		return s.mayAppear() && d.now.Sub(s.member.UpdatedAt) < openCall
	}
	return true
}

func (d *planner) addNew(ordinal int) {
	m := d.inherited[ordinal]
	newID := d.newID
	if newID == nil {
		newID = uuid.New
	}
	m.ID, m.ManagedID, m.Ordinal, m.Revision = newID(), d.managedID, ordinal, d.revision
	m.Status, m.Declarations = domain.MemberCreating, d.declarations
	d.add(actCreate, observed{member: m})
}

// update brings a member whose object is ready to the declared revision, and repairs or shows what others changed. It
// is false when the member is deleted, to be replaced.
func (d *planner) update(s observed, kept []observed) bool {
	isOutdated := d.isOutdated(s)
	if len(s.differences) == 0 {
		d.updated++
		d.recordReady(s)
		return true
	}
	stored := s
	if s.member.Written == fault { // its error has ended
		s.member.Status, s.member.Reason, s.member.Written = domain.MemberReady, s.object.Reason, ""
	}
	if !isOutdated {
		d.updated++
	}
	var inPlace []Difference
	for _, one := range s.differences {
		if !isOutdated && !one.Follows {
			d.drift = append(d.drift, domain.Drift{
				Member: s.member.ID, Field: one.Field, Declared: one.Declared, Actual: one.Actual,
			})
		}
		if !isOutdated && one.Follows && one.Way == InPlace {
			d.following = append(d.following, one.Field)
		}
		switch {
		case !isOutdated && !d.repairs && !one.Follows && !one.IsMark:
		case one.Way == InPlace:
			inPlace = append(inPlace, one)
		case one.Way == Refused:
			d.refused = append(d.refused, one)
		}
	}
	_, isDisrupting := disrupting(inPlace) // what a new server lacks otherwise is added however often that fails
	switch {
	case s.isStopped() && (isOutdated || d.repairs || len(inPlace) > 0):
		d.stop(s)
	case d.isStalled && isOutdated && (s.member.WasReady || isDisrupting || len(inPlace) == 0 || d.mustReplace(s)):
		if d.stalls(s) {
			d.problems = append(d.problems, s.member.Reason)
		}
	case !d.isDue(s):
		d.explainPause(s)
	case d.mustReplace(s):
		return d.replace(s, kept)
	case len(inPlace) > 0:
		d.updateInPlace(s, inPlace)
	case isOutdated && s.needsAnother():
		d.keepOther(s)
	default:
		d.record(stored, s.member)
	}
	return true
}

// keepOther says what OpenStack, or another user, has made otherwise than declared of an object that is no drift yet,
// and is not replaced.
func (d *planner) keepOther(s observed) {
	n := slices.IndexFunc(s.differences, func(one Difference) bool { return one.Way == Replace })
	one := s.differences[n]
	d.isUnchanged = true
	d.problems = append(d.problems, fmt.Sprintf("its %s is %v instead of %v, which takes another one: declare repair: "+
		"auto", one.Field, one.Actual, one.Declared))
}

// record stores what has changed of a member.
func (d *planner) record(s observed, changed domain.Member) {
	if changed == s.member {
		return
	}
	d.steps = append(d.steps, step{action: actRecord, member: changed, object: s.object})
}

// recordReady stores that the member is as declared.
func (d *planner) recordReady(s observed) { d.record(s, ready(s.member, d.revision, s.object)) }

// ready is a member whose object is as a revision declares.
func ready(m domain.Member, revision int, o Object) domain.Member {
	m.Revision, m.Status, m.Reason, m.ObjectID = revision, domain.MemberReady, o.Reason, o.ID
	m.Attempts, m.RetryAt, m.Written, m.Writes, m.IsWaiting = 0, time.Time{}, "", 0, false
	m.WasReady, m.MayHaveData, m.IsRebuilt = true, true, false
	return m
}

// changing says which change of an object is under way; "" for changes that do not interrupt it.
func changing(differences []Difference) string {
	switch one, ok := disrupting(differences); {
	case !ok:
		return ""
	case one.Continues:
		return fmt.Sprintf("the change of its %s is being confirmed", one.Field)
	default:
		return fmt.Sprintf("its %s is being changed to %v", one.Field, one.Declared)
	}
}

// disrupting returns the change that is made first of those that interrupt an object.
func disrupting(differences []Difference) (Difference, bool) {
	return firstOf(differences, func(one Difference) bool { return one.Disrupts && one.Way == InPlace })
}

// mostFailures is how often a change or replacement of a server fails before the update stops.
const mostFailures = 2

// mostCreations is how often the creation of an object that is no server fails before its resource stops.
const mostCreations = 5

// stalls reports whether the member has the update stopped: its replacement, or its change, has failed too often. The
// servers that still work are left alone until something else is declared. Where none works, the update goes on.
func (d *planner) stalls(s observed) bool {
	if d.isOutdated(s) && s.isStopped() {
		return true
	}
	return d.replaces > 0 && !d.isDown && s.member.Ordinal < d.replaces && s.member.Attempts >= mostFailures &&
		s.member.Status == domain.MemberError // of a replacement, or OpenStack has rejected the change
}

// updateInPlace changes the object, if its interruption leaves enough members that work.
func (d *planner) updateInPlace(s observed, differences []Difference) {
	disrupts := slices.ContainsFunc(differences, func(one Difference) bool { return one.Disrupts })
	if disrupts && s.isAvailable() && d.isDeployment {
		if d.budget <= 0 { // a server that builds is read again soon, and one that others have stopped when it changes
			return
		}
		d.budget--
	}
	d.write(actUpdate, s, differences)
}

// replace deletes the object once enough others work; a resource that surges needs the replacement first.
func (d *planner) replace(s observed, kept []observed) (stays bool) {
	isReplaced := slices.ContainsFunc(kept, func(other observed) bool {
		return other.member.ID != s.member.ID && other.member.Ordinal == s.member.Ordinal && other.isAvailable() &&
			!d.mustReplace(other)
	})
	switch {
	case d.surges && !isReplaced, s.isAvailable() && d.budget <= 0:
		return true
	case s.isAvailable():
		d.budget--
	}
	d.inherit(s)
	if d.surges {
		d.remove(s)
	} else {
		d.removeFirst(s)
	}
	return false
}
