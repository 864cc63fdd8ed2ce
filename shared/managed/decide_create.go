package managed

import (
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// retryFailed makes a failed member again after a pause that grows, unless its object is kept.
func (d *decision) retryFailed(s seen) bool {
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
func (d *decision) isKept(s seen) bool {
	return s.isFound && s.member.MayHaveData && (s.object.Keep || !d.repairs && !s.needsAnother())
}

// recordFault stores why an object that is kept is in ERROR.
func (d *decision) recordFault(s seen, reason string) {
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
func (s seen) failedCreations() int {
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
func (d *decision) create(staying []seen, allowed int) {
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
func (d *decision) isPlacing(s seen) bool {
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

func (d *decision) addNew(ordinal int) {
	m := d.inherited[ordinal]
	newID := d.newID
	if newID == nil {
		newID = uuid.New
	}
	m.ID, m.ManagedID, m.Ordinal, m.Revision = newID(), d.managedID, ordinal, d.revision
	m.Status, m.Declarations = domain.MemberCreating, d.declarations
	d.add(actCreate, seen{member: m})
}
