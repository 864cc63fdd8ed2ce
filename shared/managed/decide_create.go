package managed

import (
	"slices"
	"strconv"
	"strings"
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
	d.problems = append(d.problems, reason)
	if s.member.WasReady && s.member.Attempts > 0 && s.member.Reason != reason { // no other one can be made now
		d.problems = append(d.problems[:len(d.problems)-1], reason+"; "+s.member.Reason)
	}
	switch {
	case d.isKept(s):
		d.recordFault(s, reason)
		return true
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

// faultPrefix begins the last change of a member whose object was ready once, and is in ERROR.
const faultPrefix = "fault "

// faultOf is the last change of such a member, whose error was recorded while a revision was declared.
func faultOf(revision int) string { return faultPrefix + strconv.Itoa(revision) }

// isFault reports whether an error of the member's object was recorded, which was ready once.
func isFault(m domain.Member) bool { return strings.HasPrefix(m.Written, faultPrefix) }

// isKept reports whether an object in ERROR is left alone. One that was ready once has what another one would lack,
// such as the data on its disk, and the error may end. A server is made again if it is to be repaired, or if another
// revision was declared after its error was shown.
func (d *decision) isKept(s seen) bool {
	isDeclaredSince := isFault(s.member) && s.member.Written != faultOf(d.revision)
	return s.isFound && s.member.WasReady && (s.object.Keep || !d.repairs && !isDeclaredSince)
}

// recordFault stores why an object that is kept is in ERROR.
func (d *decision) recordFault(s seen, reason string) {
	if !d.isOutdated(s) {
		d.updated++
	}
	m := s.member
	m.Status, m.Reason, m.ObjectID = domain.MemberError, reason, s.object.ID
	if !isFault(m) {
		m.Written, m.Writes = faultOf(d.revision), 0
	}
	d.record(s, m)
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
	if allowed > d.count && missing == 0 {
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
		return s.member.Reason == "" && d.now.Sub(s.member.UpdatedAt) < openCall
	}
	return true
}

func (d *decision) addNew(ordinal int) {
	m := d.inherited[ordinal]
	m.ID, m.ManagedID, m.Ordinal, m.Revision = uuid.New(), d.managedID, ordinal, d.revision
	m.Status, m.Declarations = domain.MemberCreating, d.declarations
	d.add(actCreate, seen{member: m})
}
