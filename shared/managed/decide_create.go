package managed

import (
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// retryFailed makes a failed member again after a pause that grows.
func (d *decision) retryFailed(s seen) bool {
	reason := s.member.Reason
	if s.isFound && s.object.Reason != "" {
		reason = s.object.Reason
	}
	d.problems = append(d.problems, reason)
	switch {
	case s.object.Keep && (d.wasReady || wasReady(s.member)):
		return true // what would be made again lacks what it had
	case s.member.Status != domain.MemberError: // it is in ERROR since the last plan
		s.member.Status, s.member.Reason, s.member.ObjectID = domain.MemberError, reason, s.object.ID
		s.member.Attempts++
		s.member.RetryAt = d.now.Add(pauseAfter(s.member.Attempts))
		d.add(actRecord, s)
		return true
	case d.stalls(s), !d.isDue(s):
		return true
	}
	d.attempts[s.member.Ordinal] = s.member.Attempts
	d.remove(s)
	return false
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
				d.addNew(s.member.Ordinal)
				return
			}
		}
	}
	for ordinal := 0; missing > 0; ordinal++ {
		if used[ordinal] == 0 {
			d.addNew(ordinal)
			missing--
		}
	}
}

func (d *decision) addNew(ordinal int) {
	d.add(actCreate, seen{member: domain.Member{
		ID: uuid.New(), ManagedID: d.managedID, Ordinal: ordinal, Revision: d.revision,
		Status: domain.MemberCreating, Attempts: d.attempts[ordinal],
	}})
}

// wasReady reports whether the member was ready before it failed.
func wasReady(m domain.Member) bool {
	return m.Status == domain.MemberReady || m.Status == domain.MemberUpdating
}
