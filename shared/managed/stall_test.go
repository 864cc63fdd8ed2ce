package managed

import (
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestStalledUpdate: an update stops when a replacement or a change has failed twice. What works is left alone until
// something else is declared.
func TestStalledUpdate(t *testing.T) {
	t.Parallel()
	outdated := func(ordinal int, way Way, change ...func(*seen)) seen {
		return member(ordinal, append([]func(*seen){unlike(way, true)}, change...)...)
	}
	to := func(count, maxUnavailable int) target { return changed(of(count, maxUnavailable), second) }
	updates := func(count, maxUnavailable int) target {
		return changed(to(count, maxUnavailable), func(t *target) { t.replaces = count })
	}
	failed := func(attempts int) func(*seen) {
		return func(s *seen) {
			s.object.State, s.member.Status, s.member.Attempts = ObjectError, domain.MemberError, attempts
		}
	}
	for name, tc := range map[string]struct {
		target  target
		members []seen
		want    string
	}{
		"a replacement has failed once": {
			updates(2, 1), []seen{outdated(0, Replace), member(1, updated, failed(1))}, "create 1, delete 1",
		},
		"a replacement has failed twice": {updates(3, 1), []seen{
			outdated(0, Replace), outdated(1, Replace), member(2, updated, failed(2)),
		}, ""},
		"a surge has failed twice": {
			updates(2, 0), []seen{outdated(0, Replace), outdated(1, Replace), member(0, updated, failed(2))}, "",
		},
		"a change has failed twice": {updates(2, 1), []seen{
			outdated(0, InPlace, func(s *seen) {
				s.member.Status, s.member.Attempts = domain.MemberUpdating, 2
				s.member.Reason = failure(s.differences[0])
			}), outdated(1, InPlace),
		}, ""},
		"a new server has failed twice": {changed(to(2, 1), func(t *target) { t.replaces = 1 }), []seen{
			outdated(0, Replace), member(1, updated, failed(2)),
		}, "create 1, delete 1"},
		"rolled back after two failures": {changed(updates(2, 1), func(t *target) { t.revision = 3 }), []seen{
			member(0, func(s *seen) { s.member.Revision = 3 }), member(1, updated, failed(0)),
		}, "create 1, delete 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := decide(tc.target, tc.members, testNow)
			if got := stepsOf(p); got != tc.want || p.isStalled != (tc.want == "") {
				t.Errorf("got %q, stalled %t, want %q", got, p.isStalled, tc.want)
			}
			if p.isStalled && (p.isMoving || !p.retryAt.IsZero() || len(p.problems) == 0) {
				t.Errorf("it is %+v", p)
			}
		})
	}
}
