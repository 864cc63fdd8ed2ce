package managed

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// service is a driver of a service that a test scripts. It takes every call, and makes what the test says.
type service struct {
	scripted

	differs func(Desired) []Difference
	object  func(n int) Object // the nth that is made

	mu      sync.Mutex // a pass takes several steps at the same time
	made    int
	updates int
	deletes int
}

func newService(kind domain.Kind) *service {
	return &service{scripted: scripted{kind: kind, found: map[uuid.UUID]Object{}}}
}

func (d *service) Create(_ context.Context, _ Session, in Desired) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made++
	o := Object{ID: fmt.Sprint("made-", d.made), State: ObjectReady}
	if d.object != nil {
		o = d.object(d.made)
	}
	d.found[in.Member.ID] = o
	return o.ID, nil
}

func (d *service) Differences(in Desired, _ Object) []Difference {
	if d.differs == nil {
		return nil
	}
	return d.differs(in)
}

func (d *service) Update(context.Context, Session, Desired, Object, []Difference) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.updates++
	return nil
}

func (d *service) Delete(_ context.Context, _ Session, o Object) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deletes++
	for id, one := range d.found {
		if one.ID == o.ID {
			delete(d.found, id)
		}
	}
	return nil
}

// serve has the service's resource worked on for so long, as often as it is due.
func (d *service) serve(t *testing.T, e Engine, s *memory, long time.Duration) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(s.dueIn) {
		s.run(t, e)
	}
}

func newServed(d *service) (Engine, *memory) {
	e, s := newPass()
	e.Drivers[d.kind] = d
	s.all = append(s.all, domain.Managed{
		ID: uuid.New(), Kind: d.kind, Name: "thing", Revision: 1, Request: domain.ManagedCreate, Spec: []byte("{}"),
		Repair: domain.RepairAuto,
	})
	return e, s
}

func conditionOf(m domain.Managed, kind string) (found domain.Condition) {
	for _, c := range m.Conditions {
		if c.Type == kind {
			found = c
		}
	}
	return found
}

// TestNoProgress: what a service accepts and does not make is repeated once, after a pause. Then the resource stops
// and says why, until something else is declared or observed.
func TestNoProgress(t *testing.T) {
	t.Parallel()
	actual := "old"
	size := func(way Way) func(Desired) []Difference {
		return func(Desired) []Difference {
			return []Difference{{Field: "description", Declared: "new", Actual: actual, Way: way}}
		}
	}
	for name, tc := range map[string]struct {
		differs func(Desired) []Difference
		object  func(int) Object
		made    int
		updates int
		why     string
	}{
		"a change": {size(InPlace), nil, 1, 2, "OpenStack accepted the change of its description to new"},
		"what follows others": {func(Desired) []Difference {
			return []Difference{{Field: "members", Declared: "a", Actual: "b", Way: InPlace, Follows: true}}
		}, nil, 1, 2, "the change of its members to a"},
		"a replacement": {size(Replace), nil, 2, 0, "it was replaced because of its description, which is old again"},
		"what is incomplete": {nil, func(n int) Object {
			return Object{ID: strconv.Itoa(n), State: ObjectIncomplete}
		}, 3, 0, "OpenStack accepted what completes it"},
		"a creation": {nil, func(n int) Object {
			return Object{ID: strconv.Itoa(n), State: ObjectError, Reason: "no backend takes it", Keep: true}
		}, mostCreations, 0, "no backend takes it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newService(domain.KindVolume)
				d.differs, d.object = tc.differs, tc.object
				e, s := newServed(d)
				d.serve(t, e, s, time.Hour)
				if d.made != tc.made || d.updates != tc.updates || len(d.found) != 1 || d.lists > 300 {
					t.Errorf("in an hour: %d creations, %d updates, %d lists; there are %v", d.made, d.updates, d.lists,
						d.found)
				}
				m := s.all[0]
				c := conditionOf(m, domain.ConditionProgressing)
				if m.Status != domain.ManagedError || !strings.Contains(m.Reason, tc.why) || c.Status != "False" ||
					c.Reason != "NoProgress" || !strings.Contains(c.Message, tc.why) || !m.NextAt.IsZero() {
					t.Errorf("it is %s, %q, due at %s, with %+v", m.Status, m.Reason, m.NextAt, c)
				}
				for id, member := range s.members { // as a further declaration does
					member.Writes, member.Attempts = 0, 0
					s.members[id] = member
				}
				d.differs, d.object = nil, nil
				for id := range d.found {
					if tc.object != nil {
						continue
					}
					d.found[id] = Object{ID: "as declared", State: ObjectReady}
				}
				d.serve(t, e, s, time.Minute)
				if m := s.all[0]; m.Status != domain.ManagedReady ||
					conditionOf(m, domain.ConditionProgressing).Status != "True" {
					t.Errorf("declared again it is %s, %q", m.Status, m.Reason)
				}
			})
		})
	}
}

// TestProgress: changes that lead somewhere are made without pauses, however many there are.
func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newService(domain.KindBalancer)
		left := 20
		d.differs = func(Desired) (all []Difference) {
			for n := range left - d.updates {
				all = append(all, Difference{Field: fmt.Sprint("listeners.", n), Declared: "there", Way: InPlace})
			}
			return all
		}
		e, s := newServed(d)
		d.serve(t, e, s, 30*time.Second)
		if m := s.all[0]; m.Status != domain.ManagedReady || d.updates != left {
			t.Errorf("after %d updates it is %s, %q", d.updates, m.Status, m.Reason)
		}
	})
}

// TestFollowing: while a load balancer lacks servers that have become ready in the same pass, it is ready and not
// updated.
func TestFollowing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newService(domain.KindBalancer)
		servers := 0
		d.differs = func(Desired) []Difference {
			if d.updates == servers {
				return nil
			}
			return []Difference{{Field: "listeners.tcp-80.members", Declared: servers, Way: InPlace, Follows: true}}
		}
		e, s := newServed(d)
		d.serve(t, e, s, time.Minute)
		servers++
		for _, want := range []string{
			"False Following revision 1; other resources have changed, and are followed in listeners.tcp-80.members",
			"True AsDeclared revision 1",
		} {
			s.run(t, e)
			c := conditionOf(s.all[0], domain.ConditionUpdated)
			got := c.Status + " " + c.Reason + " " + c.Message
			if s.all[0].Status != domain.ManagedReady || got != want {
				t.Errorf("it is %s, and updated: %s", s.all[0].Status, got)
			}
		}
	})
}

// TestNewUntilReady: a new object that is made in several steps is new until the last one, without repair.
func TestNewUntilReady(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newService(domain.KindBalancer)
		d.differs = func(Desired) (all []Difference) {
			for n := range 3 - d.updates {
				all = append(all, Difference{
					Field: fmt.Sprint("part.", n), Declared: active, Way: InPlace, Follows: n == 0,
				})
			}
			return all
		}
		e, s := newServed(d)
		s.all[0].Repair = domain.RepairManual
		for d.updates < 3 {
			s.run(t, e)
			if m := s.all[0]; m.Status != domain.ManagedCreating || len(m.Drift) > 0 {
				t.Fatalf("after %d updates it is %s, with the drift %v", d.updates, m.Status, m.Drift)
			}
		}
		if s.run(t, e); s.all[0].Status != domain.ManagedReady {
			t.Errorf("it is %s, %q", s.all[0].Status, s.all[0].Reason)
		}
	})
}

// TestStuck: an object that OpenStack leaves in one status is listed less and less often, and the resource says since
// when. After half an hour it is an error. When OpenStack goes on, so does the resource.
func TestStuck(t *testing.T) {
	t.Parallel()
	for _, isDeleting := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newService(domain.KindBalancer)
			e, s := newServed(d)
			d.serve(t, e, s, time.Minute)
			state := ObjectWorking
			if isDeleting {
				s.all[0].Request, state = domain.ManagedDelete, ObjectDeleting
				s.run(t, e)
			}
			began := time.Now()
			since := began.UTC().Format(time.RFC3339)
			for id := range s.members {
				d.found[id] = Object{
					ID: "made-1", State: state, ChangedAt: began, Phase: "Octavia's status is PENDING_UPDATE",
				}
			}
			d.lists = 0
			d.serve(t, e, s, time.Minute)
			text := "Octavia's status is PENDING_UPDATE since " + since
			if m := s.all[0]; !strings.Contains(conditionOf(m, domain.ConditionReady).Message, text) || d.lists > 40 ||
				m.Status == domain.ManagedError {
				t.Errorf("after a minute and %d lists it is %s, %q", d.lists, m.Status, m.Reason)
			}
			d.serve(t, e, s, time.Hour)
			m, c := s.all[0], conditionOf(s.all[0], domain.ConditionProgressing)
			if !strings.Contains(m.Reason, text) || c.Status != "False" || c.Reason != "Stuck" || c.Message != text ||
				d.lists > 150 || (m.Status == domain.ManagedError) == isDeleting {
				t.Errorf("after an hour and %d lists it is %s, %q, with %+v", d.lists, m.Status, m.Reason, c)
			}
			for id, o := range d.found {
				o.State, o.ChangedAt = ObjectReady, time.Now()
				if d.found[id] = o; isDeleting {
					clear(d.found)
				}
			}
			d.serve(t, e, s, 2*time.Minute)
			if isDeleting != (len(s.all) == 0) || !isDeleting && s.all[0].Status != domain.ManagedReady {
				t.Errorf("then it is %+v", s.all)
			}
		})
	}
}

// TestDeletionWithoutEffect: a deletion that a service accepts and does not make is repeated after pauses that grow.
func TestDeletionWithoutEffect(t *testing.T) {
	t.Parallel()
	s, now := member(0, status(domain.MemberDeleting)), testNow
	var pauses []time.Duration
	for range 4 {
		p := decide(changed(single(), func(t *target) { t.count = 0 }), []observed{s}, now)
		if stepsOf(p) != "delete 0" {
			t.Fatalf("%q", stepsOf(p))
		}
		s.member = p.steps[0].member
		s.member.UpdatedAt = now
		p = decide(changed(single(), func(t *target) { t.count = 0 }), []observed{s}, now)
		if len(p.steps) > 0 {
			t.Fatalf("it is deleted again without a pause: %q", stepsOf(p))
		}
		pauses = append(pauses, p.retryAt.Sub(now))
		now = p.retryAt
	}
	if !slices.IsSorted(pauses) || pauses[0] != shortestPause || pauses[3] != 8*shortestPause {
		t.Errorf("the pauses are %s", pauses)
	}
}
