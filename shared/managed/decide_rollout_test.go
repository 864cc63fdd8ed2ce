package managed

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestStalledUpdate: an update stops when a replacement or a change has failed twice. What works is left alone until
// something else is declared.
func TestStalledUpdate(t *testing.T) {
	t.Parallel()
	outdated := func(ordinal int, way Way, change ...func(*observed)) observed {
		return member(ordinal, append([]func(*observed){unlike(way, true)}, change...)...)
	}
	to := func(count, maxUnavailable int) target { return changed(of(count, maxUnavailable), second) }
	updates := func(count, maxUnavailable int) target {
		return changed(to(count, maxUnavailable), func(t *target) { t.replaces = count })
	}
	failed := func(attempts int) func(*observed) {
		return func(s *observed) {
			status(domain.MemberError)(s)
			s.object.State, s.member.Attempts = ObjectError, attempts
		}
	}
	alone := changed(single(), func(t *target) { t.revision, t.replaces, t.surges = 2, 1, false })
	for name, tc := range map[string]struct {
		target  target
		members []observed
		want    string
	}{
		"a replacement has failed once": {
			updates(2, 1), []observed{outdated(0, Replace), member(1, updated, failed(1))}, "create 1, delete 1",
		},
		"a replacement has failed twice": {updates(3, 1), []observed{
			outdated(0, Replace), outdated(1, Replace), member(2, updated, failed(2)),
		}, ""},
		"a surge has failed twice": {
			updates(2, 0), []observed{outdated(0, Replace), outdated(1, Replace), member(0, updated, failed(2))}, "",
		},
		"a change has failed twice": {updates(2, 1), []observed{
			outdated(0, InPlace, wrote(2)), outdated(1, InPlace),
		}, ""},
		"a new server has failed twice": {changed(to(2, 1), func(t *target) { t.replaces = 1 }), []observed{
			outdated(0, Replace), member(1, updated, failed(2)),
		}, "create 1, delete 1"},
		"nothing works any more": {alone, []observed{member(0, updated, failed(2))}, "create 0, delete 0"},
		"one is stopped by its user": {
			updates(2, 1), []observed{outdated(0, Replace, off), member(1, updated, failed(2))}, "",
		},
		"rolled back after two failures": {changed(updates(2, 1), func(t *target) { t.revision = 3 }), []observed{
			member(0, func(s *observed) { s.member.Revision = 3 }), member(1, updated, failed(0)),
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
			s := member(0, updated, off, func(s *observed) { s.member.Reason = s.object.Reason })
			if isSoon {
				s = member(0, updated, state(ObjectWorking), justNow)
			}
			p := decide(to, []observed{s, old, member(2, updated)}, testNow)
			if p.isMoving != isSoon || len(p.steps) > 0 || !p.retryAt.IsZero() {
				t.Errorf("%s, one %s: moves %t, %q until %s", way, blocker, p.isMoving, stepsOf(p), p.retryAt)
			}
		}
	}
}

// refusing is a service that refuses every change of its objects.
type refusing struct{ *service }

func (refusing) Update(context.Context, Session, Desired, Object, []Difference) error {
	return apperr.New(apperr.Invalid, "nova rejects the tag")
}

// TestFaultOfIncomplete: a server that works and lacks a tag, which Nova refuses, may have data. It is left alone in
// ERROR, also when that is the first thing that a pass finds after it was declared again.
func TestFaultOfIncomplete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newService(domain.KindMachine)
		d.differs = func(Desired) []Difference { return []Difference{{Field: "tags.a", Declared: "a", Way: InPlace}} }
		e, s := newServed(d)
		e.Drivers[domain.KindMachine] = refusing{d}
		s.all[0].Repair = domain.RepairManual
		d.serve(t, e, s, time.Hour)
		if m := s.only(t); m.WasReady || !m.MayHaveData || !strings.Contains(m.Reason, "rejects the tag") {
			t.Fatalf("it is %+v", m)
		}
		for id, o := range d.found {
			o.State, o.Reason = ObjectError, "the disk has failed"
			d.found[id] = o
		}
		s.all[0].Revision, s.all[0].Request, s.all[0].NextAt = 2, domain.ManagedUpdate, time.Now()
		d.serve(t, e, s, time.Hour)
		if m := s.all[0]; d.made != 1 || d.deletes > 0 || m.Status != domain.ManagedError ||
			m.Reason != "the disk has failed" {
			t.Errorf("made %d, deleted %d: it is %s, %s", d.made, d.deletes, m.Status, m.Reason)
		}
	})
}

// TestDeclaredSince: of a server in ERROR differs what its declaration has changed since its own revision, and not what
// OpenStack has left.
func TestDeclaredSince(t *testing.T) {
	t.Parallel()
	const network = `, "update": "replace", "networks": ["a"]}`
	for name, tc := range map[string]struct{ declared, made, shown, want string }{
		"nothing":            {`{"flavor": "a"` + network, `{"flavor": "a"` + network, "a", ""},
		"a failed resize":    {`{"flavor": "a"` + network, `{"flavor": "a"` + network, "b", ""},
		"an earlier one":     {`{"flavor": "b"` + network, `{"flavor": "a"` + network, "b", ""},
		"another flavor":     {`{"flavor": "b"` + network, `{"flavor": "a"` + network, "a", "replace flavor"},
		"of a failed resize": {`{"flavor": "b"` + network, `{"flavor": "a"` + network, "c", "replace flavor"},
		"in place":           {`{"flavor": "b"}`, `{"flavor": "a"}`, "a", "in_place flavor"},
		"another network": {
			`{"flavor": "a", "networks": ["b"], "update": "replace"}`, `{"flavor": "a"` + network, "a",
			"replace networks",
		},
	} {
		in := Desired{
			Resource: domain.Managed{ID: uuid.New(), Name: "thing", Revision: 2},
			Member:   domain.Member{ID: tried, Revision: 1}, Name: "thing", Spec: json.RawMessage(tc.declared),
			Made: domain.Revision{Number: 1, Spec: json.RawMessage(tc.made)},
		}
		server := serverOf(in.Made.Spec).(domain.Server)
		server.Status, server.Flavor.Name = "ERROR", tc.shown
		o := Object{ID: "server", Name: "thing", State: ObjectError, Raw: server}
		var got []string
		since := func() []Difference {
			d := &MachineDriver{}
			return declaredSince(d.Differences(in.asMade(), o), d.Differences(in, o))
		}
		for _, one := range since() {
			got = append(got, string(one.Way)+" "+one.Field)
		}
		if text := strings.Join(got, ", "); text != tc.want {
			t.Errorf("%s: it differs in %q, want %q", name, text, tc.want)
		}
		if in.Made.Number = 0; len(since()) > 0 {
			t.Errorf("%s: it differs from an unknown revision", name)
		}
	}
}

// TestCheckWithoutAnswer: while it cannot be checked whether a server could be replaced, it waits, however long that
// takes, and says what for. That is no failure of the update, which goes on after it.
func TestCheckWithoutAnswer(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*domain.Member, *Object){
		"one that works": func(*domain.Member, *Object) {},
		"one in ERROR": func(m *domain.Member, o *Object) {
			m.Status, m.Reason, m.Written, o.State, o.Reason = domain.MemberError, "fault", fault, ObjectError, "fault"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var o Object
				flavor := Difference{Field: "flavor", Way: Replace}
				e, s, d := newChange(flavor, func(m *domain.Member) { change(m, &o) })
				id := s.only(t).ID
				if o.State != "" {
					o.ID, o.Raw = "s", "it"
					d.found[id] = o
				}
				s.all[0].Repair = domain.RepairAuto
				d.checkErr = apperr.New(apperr.Unavailable, "nova is unavailable")
				for range 5 {
					s.pauses(t, e, 1)
					if m := s.all[0]; !strings.Contains(m.Reason, "nova is unavailable") && m.Reason != "fault" {
						t.Errorf("it is %s, %s", m.Status, m.Reason)
					}
				}
				s.run(t, e)
				if m := s.all[0]; !strings.Contains(m.Reason, "nova is unavailable") || len(d.deleted) > 0 ||
					conditionOf(m, domain.ConditionProgressing).Status != "True" || s.only(t).Attempts > 0 {
					t.Errorf("it is %s, %s, with %+v", m.Status, m.Reason, s.members)
				}
				d.checkErr = nil
				time.Sleep(driftPause)
				if s.run(t, e); len(d.deleted) != 1 {
					t.Errorf("then deleted are %q: %s, %+v", d.deleted, s.all[0].Reason, s.members)
				}
			})
		})
	}
}

// TestFaultAndWait: a server in ERROR that is to be replaced shows its fault, and why that is not done yet, be it a
// failure or a wait.
func TestFaultAndWait(t *testing.T) {
	t.Parallel()
	repairs := changed(single(), func(t *target) { t.repairs = true })
	for _, attempts := range []int{0, 1} {
		s := member(0, failing, pausing)
		s.member.Reason, s.member.Attempts, s.member.IsWaiting = "volume data is reserved", attempts, attempts == 0
		p := decide(repairs, []observed{s}, testNow)
		if want := "No valid host; volume data is reserved"; len(p.problems) != 1 || p.problems[0] != want {
			t.Errorf("after %d attempts it is %q, want %q", attempts, p.problems, want)
		}
		p = decide(single(), []observed{s}, testNow) // it is left alone
		if len(p.problems) != 1 || p.problems[0] != "No valid host" {
			t.Errorf("left alone it is %q", p.problems)
		}
	}
}
