package managed

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// mostWrites is how many changes in a row OpenStack may accept and not make before the resource stops.
const mostWrites = 2

// stuckAfter is how long OpenStack may leave an object in one status before the resource is an error. It may go on
// later.
const stuckAfter = 30 * time.Minute

// follow has the plan made again while OpenStack works on an object: soon at first, and after a tenth of the time for
// which nothing has changed.
func (d *planner) follow(s observed) {
	d.isFollowing = true
	if s.object.Phase == "" && s.member.Reason != s.object.Reason { // only its id is known, since now
		m := s.member
		m.Reason = s.object.Reason
		d.record(s, m)
		d.isMoving = true
		return
	}
	since := s.object.ChangedAt
	if s.member.UpdatedAt.After(since) { // the last step for it was later
		since = s.member.UpdatedAt
	}
	quiet := d.now.Sub(since)
	if quiet <= slowAfter {
		d.isMoving = true
		return
	}
	d.wait(d.now.Add(min(quiet/slowness, driftPause)))
	text := fmt.Sprintf("%s since %s", cmp.Or(s.object.Phase, s.object.Reason), since.UTC().Format(time.RFC3339))
	if quiet < stuckAfter {
		d.slow = append(d.slow, text)
		return
	}
	d.stuck = append(d.stuck, text)
	d.problems = append(d.problems, text)
}

const (
	slowness = 10 // times the pause is the time for which nothing has changed
	// slowAfter is the time without a change after which the reason shows the status of an object.
	slowAfter = slowness * movingPause
)

// trace is a digest of what an object lacks. It is the same after a change that changed nothing. It is "" when it is
// not known.
func (s observed) trace() string {
	text, err := json.Marshal(struct {
		State       ObjectState
		Phase       string
		Differences []Difference
	}{s.object.State, s.object.Phase, s.differences})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// isRepeated reports whether the last change that OpenStack accepted for the member has changed nothing.
func (s observed) isRepeated() bool {
	return s.isFound && s.member.Writes > 0 && s.member.Written != "" && s.member.Written == s.trace()
}

// isStopped reports whether OpenStack has accepted changes of an object, or replacements of it, that changed nothing
// too often. A confirmation is repeated for as long as it takes.
func (s observed) isStopped() bool {
	return s.member.Writes >= mostWrites && !slices.ContainsFunc(s.differences, func(one Difference) bool {
		return one.Continues
	}) && s.object.State != ObjectDeleting && s.member.Status != domain.MemberDeleting && s.isRepeated()
}

// write adds a step that removes differences of an object. One that OpenStack has accepted before, and that has changed
// nothing, is repeated after a pause that grows.
func (d *planner) write(a action, s observed, differences []Difference) {
	isRepeated := s.isRepeated()
	if !isRepeated {
		s.member.Written, s.member.Writes = s.trace(), 0
	}
	s.differences = differences
	if until := s.member.UpdatedAt.Add(pauseAfter(s.member.Writes)); isRepeated && until.After(d.now) {
		d.wait(until)
		d.isMoving = d.isMoving || s.member.Writes == 1 // some is there soon after it was accepted
	} else {
		s.member.Writes++
		d.add(a, s)
	}
	if _, isDisrupting := disrupting(s.differences); isRepeated && (isDisrupting || s.member.Writes > 1) {
		d.problems = append(d.problems, s.noProgress())
	}
}

// stop says why nothing is done for a member any more.
func (d *planner) stop(s observed) {
	d.isUnchanged = true
	d.problems = append(d.problems, s.noProgress())
}

// noProgress says what OpenStack has accepted and not made. Nova shows the reason to admins only.
func (s observed) noProgress() string {
	switch one, isDisrupting := disrupting(s.differences); {
	case s.member.Status == domain.MemberDeleting:
		return "OpenStack accepted its deletion, and did not make it"
	case s.object.State == ObjectIncomplete:
		return "OpenStack accepted what completes it, and it is as before"
	case len(s.differences) == 0:
		return "OpenStack accepted its change, and did not make it"
	case !isDisrupting:
		return failure(s.differences[0])
	default:
		return failure(one)
	}
}

// failure means that OpenStack has not made a change.
func failure(one Difference) string {
	if one.Way == Replace {
		return fmt.Sprintf("it was replaced because of its %s, which is %v again instead of %v", one.Field, one.Actual,
			one.Declared)
	}
	return fmt.Sprintf("OpenStack accepted the change of its %s to %v, and did not make it", one.Field, one.Declared)
}

// inherit has the replacement of a member know what the member is replaced for, and how often. An object that was made
// to the declared revision, and differs from it, counts as a change that changed nothing.
func (d *planner) inherit(s observed) {
	m := d.inherited[s.member.Ordinal]
	switch m.Written, m.Writes = s.trace(), 1; {
	case s.isRepeated():
		m.Writes += s.member.Writes
	case !s.member.WasReady && s.member.Revision == d.revision:
		m.Writes++
	}
	d.inherited[s.member.Ordinal] = m
}
