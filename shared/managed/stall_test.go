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
			status(domain.MemberError)(s)
			s.object.State, s.member.Attempts = ObjectError, attempts
		}
	}
	alone := changed(single(), func(t *target) { t.revision, t.replaces, t.surges = 2, 1, false })
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
			outdated(0, InPlace, wrote(2)), outdated(1, InPlace),
		}, ""},
		"a new server has failed twice": {changed(to(2, 1), func(t *target) { t.replaces = 1 }), []seen{
			outdated(0, Replace), member(1, updated, failed(2)),
		}, "create 1, delete 1"},
		"nothing works any more": {alone, []seen{member(0, updated, failed(2))}, "create 0, delete 0"},
		"one is stopped by its user": {
			updates(2, 1), []seen{outdated(0, Replace, off), member(1, updated, failed(2))}, "",
		},
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

// TestFirstServerIsNoUpdate: the first server of a VirtualMachine that fails is made again for as long as it takes;
// only an update of one that was there stops.
func TestFirstServerIsNoUpdate(t *testing.T) {
	t.Parallel()
	for observed, want := range []int{0, 1, 0} {
		m := resource{Managed: domain.Managed{Kind: domain.KindMachine, ObservedRevision: observed}}
		m.Revision = 2
		if got := m.target().replaces; got != want {
			t.Errorf("of revision %d, after %d, it replaces %d servers, want %d", m.Revision, observed, got, want)
		}
	}
}

// TestBlockedUpdate: an update that waits for servers which others have stopped is due when they change, and not each
// second. One that waits for a server that builds is due soon.
func TestBlockedUpdate(t *testing.T) {
	t.Parallel()
	to := changed(of(3, 1), second)
	for _, way := range []Way{InPlace, Replace} {
		old := member(1, unlike(way, true))
		for blocker, isSoon := range map[string]bool{"stopped": false, "builds": true} {
			s := member(0, updated, off, func(s *seen) { s.member.Reason = s.object.Reason })
			if isSoon {
				s = member(0, updated, state(ObjectWorking), justNow)
			}
			p := decide(to, []seen{s, old, member(2, updated)}, testNow)
			if p.isMoving != isSoon || len(p.steps) > 0 || !p.retryAt.IsZero() {
				t.Errorf("%s, one %s: moves %t, %q until %s", way, blocker, p.isMoving, stepsOf(p), p.retryAt)
			}
		}
	}
}
