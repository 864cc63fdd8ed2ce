package managed

import (
	"fmt"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// update brings a member whose object is ready to the declared revision, and repairs or shows what others changed. It
// is false when the member is deleted, to be replaced.
func (d *decision) update(s seen, kept []seen) bool {
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
func (d *decision) keepOther(s seen) {
	n := slices.IndexFunc(s.differences, func(one Difference) bool { return one.Way == Replace })
	one := s.differences[n]
	d.isUnchanged = true
	d.problems = append(d.problems, fmt.Sprintf("its %s is %v instead of %v, which takes another one: declare repair: "+
		"auto", one.Field, one.Actual, one.Declared))
}

// record stores what has changed of a member.
func (d *decision) record(s seen, changed domain.Member) {
	if changed == s.member {
		return
	}
	d.steps = append(d.steps, step{action: actRecord, member: changed, object: s.object})
}

// recordReady stores that the member is as declared.
func (d *decision) recordReady(s seen) {
	m := s.member
	m.Revision, m.Status, m.Reason, m.ObjectID = d.revision, domain.MemberReady, s.object.Reason, s.object.ID
	m.Attempts, m.RetryAt, m.Written, m.Writes, m.IsWaiting = 0, time.Time{}, "", 0, false
	m.WasReady, m.MayHaveData, m.IsRebuilt = true, true, false
	d.record(s, m)
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
	n := slices.IndexFunc(differences, func(one Difference) bool { return one.Disrupts && one.Way == InPlace })
	if n < 0 {
		return Difference{}, false
	}
	return differences[n], true
}

// mostFailures is how often a change or replacement of a server fails before the update stops.
const mostFailures = 2

// mostCreations is how often the creation of an object that is no server fails before its resource stops.
const mostCreations = 5

// stalls reports whether the member has the update stopped: its replacement, or its change, has failed too often. The
// servers that still work are left alone until something else is declared. Where none works, the update goes on.
func (d *decision) stalls(s seen) bool {
	if d.isOutdated(s) && s.isStopped() {
		return true
	}
	return d.replaces > 0 && !d.isDown && s.member.Ordinal < d.replaces && s.member.Attempts >= mostFailures &&
		s.member.Status == domain.MemberError // of a replacement, or OpenStack has rejected the change
}

// updateInPlace changes the object, if its interruption leaves enough members that work.
func (d *decision) updateInPlace(s seen, differences []Difference) {
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
func (d *decision) replace(s seen, kept []seen) (stays bool) {
	isReplaced := slices.ContainsFunc(kept, func(other seen) bool {
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
