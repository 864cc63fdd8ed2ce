package managed

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// memory is a store of one project. Its clock is that of the test.
type memory struct {
	mu      sync.Mutex
	all     []domain.Managed
	members map[uuid.UUID]domain.Member
	dueIn   time.Duration // of the last release
	fenced  bool          // another replica has the project
	changed bool          // the revisions of members are deleted
	saves   int           // of members
	scanned bool          // the last pass looked at all
	found   map[string]time.Time
	listed  int      // listings of the last scan
	marked  []string // what they have shown
	orphans []string
}

func (s *memory) Load(context.Context, string) ([]domain.Managed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append([]domain.Managed{}, s.all...)
	for n := range all {
		all[n].Members = nil
		for _, m := range s.members {
			if m.ManagedID == all[n].ID {
				all[n].Members = append(all[n].Members, m)
			}
		}
	}
	return all, nil
}

func (s *memory) Connections(context.Context, string) (map[uuid.UUID]*domain.Connection, error) {
	known := map[uuid.UUID]*domain.Connection{}
	for _, m := range s.all {
		known[m.ID] = &domain.Connection{ID: uuid.Nil, Status: domain.ConnectionActive}
	}
	return known, nil
}

func (s *memory) ReleaseProject(
	_ context.Context, _ domain.Claim, p domain.ManagedProject, dueIn time.Duration,
) error {
	s.dueIn, s.scanned = dueIn, !p.NextScanAt.IsZero()
	return nil
}

func (s *memory) HoldsProject(context.Context, domain.Claim, string) error {
	if s.fenced {
		return domain.ErrFenced
	}
	return nil
}

func (s *memory) SaveMember(_ context.Context, _ domain.Claim, _ string, m domain.Member) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fenced {
		return domain.ErrFenced
	}
	if s.changed {
		return domain.ErrChanged
	}
	if s.saves++; s.members[m.ID] != m {
		m.UpdatedAt = time.Now()
	}
	s.members[m.ID] = m
	return nil
}

func (s *memory) DeleteMember(_ context.Context, _ domain.Claim, _ string, id uuid.UUID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, id)
	return nil
}

func (s *memory) SaveStatus(_ context.Context, _ domain.Claim, changed ...*domain.Managed) error {
	for _, m := range changed {
		for n := range s.all {
			if s.all[n].ID == m.ID {
				s.all[n] = *m
			}
		}
	}
	return nil
}

func (s *memory) Remove(_ context.Context, _ domain.Claim, m domain.Managed) error {
	var left []domain.Managed
	for _, one := range s.all {
		if one.ID != m.ID {
			left = append(left, one)
		}
	}
	s.all = left
	return nil
}

func (s *memory) SaveUnexpected(
	_ context.Context, _ domain.Claim, _ string, found []domain.UnexpectedObject, after time.Duration,
) (reported []string, err error) {
	for _, o := range found {
		if _, isKnown := s.found[o.ObjectID]; !isKnown {
			if s.found == nil {
				s.found = map[string]time.Time{}
			}
			s.found[o.ObjectID] = time.Now()
		}
		if !slices.Contains(s.orphans, o.ObjectID) && time.Since(s.found[o.ObjectID]) >= after {
			reported = append(reported, o.ObjectID)
		}
	}
	return reported, nil
}

func (s *memory) ForgetUnexpected(
	_ context.Context, _ domain.Claim, _ string, listed []domain.UnexpectedObject, found []string, _ time.Duration,
) error {
	s.listed, s.marked = len(listed), found
	return nil
}

func (*memory) Now(context.Context) (time.Time, error) { return time.Now(), nil }

// open is a Sessions that opens every trust.
type open struct{}

func (open) Open(context.Context, domain.Connection, string) (Session, error) { return Session{}, nil }
func (open) Lose(context.Context, domain.Connection)                          {}
func (open) Forget(uuid.UUID)                                                 {}

// scripted is a driver whose calls fail as a test says. It records them.
type scripted struct {
	ConfigmapDriver

	kind    domain.Kind
	found   map[uuid.UUID]Object
	listErr error
	findErr error
	create  func() error
	needs   []Ref
	lists   int
	mu      sync.Mutex
	finds   []string // the ids, under mu
	deleted []string
}

func (d *scripted) Kinds() []domain.Kind        { return []domain.Kind{d.kind} }
func (d *scripted) Needs(json.RawMessage) []Ref { return d.needs }

func (d *scripted) List(context.Context, Session, []domain.Member) (map[uuid.UUID]Object, error) {
	d.lists++
	return d.found, d.listErr
}

func (d *scripted) Find(_ context.Context, _ Session, id string) (Object, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finds = append(d.finds, id)
	for _, o := range d.found {
		if o.ID == id {
			return o, d.findErr
		}
	}
	return Object{}, apperr.New(apperr.NotFound, "there is no object %s", id)
}

func (d *scripted) Create(context.Context, Session, Desired) (string, error) {
	if d.create == nil {
		return "", nil
	}
	return "", d.create()
}

func (d *scripted) Delete(_ context.Context, _ Session, o Object) error {
	d.deleted = append(d.deleted, o.ID)
	return nil
}

// newPass has a new resource of each driver's kind.
func newPass(drivers ...*scripted) (Engine, *memory) {
	s := &memory{members: map[uuid.UUID]domain.Member{}}
	e := Engine{
		Store: s, Sessions: open{}, Drivers: map[domain.Kind]Driver{}, Wake: func(...string) {},
	}
	for _, d := range drivers {
		e.Drivers[d.kind] = d
		s.all = append(s.all, domain.Managed{
			ID: uuid.New(), Kind: d.kind, Name: "thing", Revision: 1, Request: domain.ManagedCreate, Spec: []byte("{}"),
		})
	}
	return e, s
}

func (s *memory) run(t *testing.T, e Engine) {
	t.Helper()
	if err := e.Run(t.Context(), domain.NewClaim(), domain.ManagedProject{}); err != nil {
		t.Error(err)
	}
}

// TestPauseAfterLongCall: the pause after a failure begins when the call has failed, however long it took.
func TestPauseAfterLongCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s := newPass(&scripted{kind: domain.KindVolume, create: func() error {
			time.Sleep(30 * time.Second)
			return apperr.New(apperr.Unavailable, "cinder is unavailable")
		}})
		s.run(t, e)
		for _, m := range s.members {
			if left := time.Until(m.RetryAt); left != shortestPause {
				t.Errorf("it is repeated after %s, want %s", left, shortestPause)
			}
		}
		if len(s.members) != 1 {
			t.Errorf("it has the members %+v", s.members)
		}
		s.run(t, e) // its status is new
		s.run(t, e)
		if s.dueIn != shortestPause {
			t.Errorf("the project is due in %s, want %s", s.dueIn, shortestPause)
		}
	})
}

// TestWaitingIsNoMotion: a project in which all wait for what is not declared is due when others declare it, or after a
// minute.
func TestWaitingIsNoMotion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s := newPass(&scripted{kind: domain.KindMachine, needs: []Ref{{domain.KindVolume, "absent"}}})
		s.run(t, e) // its status is new
		s.run(t, e)
		if s.dueIn != driftPause || s.all[0].Reason != "there is no Volume absent" {
			t.Errorf("the project is due in %s: %s", s.dueIn, s.all[0].Reason)
		}
	})
}

// TestWaitEnds: what waits for another resource goes on as soon as that is ready.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		volumes := &scripted{kind: domain.KindVolume}
		e, s := newPass(volumes, &scripted{kind: domain.KindMachine, needs: []Ref{{domain.KindVolume, "thing"}}})
		s.run(t, e)
		for id := range s.members {
			volumes.found = map[uuid.UUID]Object{id: {ID: "v", State: ObjectReady}}
		}
		s.run(t, e)
		if s.dueIn != movingPause || s.all[0].Status != domain.ManagedReady {
			t.Errorf("the project is due in %s after the volume is %s", s.dueIn, s.all[0].Status)
		}
	})
}

// TestOneServiceIsAway: a service that does not answer does not slow down what moves elsewhere.
func TestOneServiceIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s := newPass(&scripted{kind: domain.KindVolume},
			&scripted{kind: domain.KindImage, listErr: errors.New("glance is unavailable")})
		s.run(t, e)
		if s.dueIn != movingPause {
			t.Errorf("the project is due in %s, want %s", s.dueIn, movingPause)
		}
	})
}

// TestFencedDeletesNothing: a replica that has lost its claim deletes no object that was made twice.
func TestFencedDeletesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		images := &scripted{kind: domain.KindImage}
		e, s := newPass(images)
		s.run(t, e)
		for id := range s.members {
			images.found = map[uuid.UUID]Object{id: {ID: "i", State: ObjectWorking, Extra: []Object{{ID: "extra"}}}}
		}
		s.fenced = true
		if err := e.Run(t.Context(), domain.NewClaim(), domain.ManagedProject{}); !errors.Is(err, domain.ErrFenced) {
			t.Errorf("it ends with %v", err)
		}
		if len(images.deleted) > 0 {
			t.Errorf("it deletes %s", images.deleted)
		}
	})
}

// TestDeletedRevision: a pass whose revision is deleted meanwhile makes nothing, and releases its claim: the project
// is due.
func TestDeletedRevision(t *testing.T) {
	t.Parallel()
	isMade := false
	e, s := newPass(&scripted{kind: domain.KindVolume, create: func() error { isMade = true; return nil }})
	s.changed, s.dueIn = true, -1
	s.run(t, e)
	if isMade || s.dueIn != movingPause {
		t.Errorf("it is made: %t, and due in %s", isMade, s.dueIn)
	}
}

// TestStatusOfDeployment: what a deployment says of servers that are not as declared.
func TestStatusOfDeployment(t *testing.T) {
	t.Parallel()
	failed := func(s *observed) {
		status(domain.MemberError)(s)
		s.object.State, s.object.Reason, s.member.Attempts = ObjectError, "No valid host", mostFailures
	}
	for name, tc := range map[string]struct {
		members   []observed
		status    domain.ManagedStatus
		reason    string
		condition string // its type, status and reason
	}{
		"a stopped server blocks the rollout": {
			[]observed{member(0, unlike(InPlace, true)), member(1, off)},
			domain.ManagedUpdating,
			"1 of 2 have revision 2; SHUTOFF", "Progressing True Progressing",
		},
		"replacements have failed": {
			[]observed{member(0, unlike(Replace, true)), member(1, updated, failed)},
			domain.ManagedDegraded,
			"No valid host", "Progressing False ReplacementsFailed",
		},
		"a server that was ready is in ERROR": {
			[]observed{member(0, updated, failing), member(1, updated)},
			domain.ManagedDegraded, "No valid host",
			"Progressing True AsDeclared",
		},
		"earlier files": {
			[]observed{member(0, updated, func(s *observed) { s.isOld = true }), member(1, updated)},
			domain.ManagedReady, "", "Updated True EarlierFiles",
		},
	} {
		m := &resource{members: tc.members, Managed: domain.Managed{
			Kind: domain.KindDeployment, Revision: 2, ObservedRevision: 1, Spec: []byte(`{"count": 2}`),
			Made: map[int]domain.Revision{1: {Number: 1, Spec: []byte(`{"count": 2}`)}},
		}}
		m.plan = decide(m.target(), m.members, testNow)
		m.assess(testNow, nil)
		if m.Status != tc.status || m.Reason != tc.reason {
			t.Errorf("%s: it is %s, %q", name, m.Status, m.Reason)
		}
		shown := false
		for _, c := range m.Conditions {
			shown = shown || c.Type+" "+c.Status+" "+c.Reason == tc.condition
			if c.ObservedRevision != 2 {
				t.Errorf("%s: the condition %+v is not about revision 2", name, c)
			}
		}
		if !shown {
			t.Errorf("%s: it has the conditions %+v", name, m.Conditions)
		}
	}
}

// TestVanishedWhileMade: a server that vanishes while it is made is made again after a pause that grows.
func TestVanishedWhileMade(t *testing.T) {
	t.Parallel()
	s, now := member(0, status(domain.MemberCreating), lost), testNow
	var pauses []time.Duration
	for range 3 {
		p := decide(of(1, 1), []observed{s}, now)
		if stepsOf(p) != "record 0" || len(p.problems) != 1 || !strings.Contains(p.problems[0], "deleted while") {
			t.Fatalf("%q, %q", stepsOf(p), p.problems)
		}
		s.member = p.steps[0].member
		pauses = append(pauses, s.member.RetryAt.Sub(now))
		now = s.member.RetryAt
		p = decide(of(1, 1), []observed{s}, now)
		if stepsOf(p) != "create 0, forget 0" {
			t.Fatalf("then %q", stepsOf(p))
		}
		for _, one := range p.steps {
			if one.action == actCreate {
				s.member = one.member
			}
		}
		s.member.ObjectID = "made" // and it vanishes again
	}
	if diff := cmp.Diff([]time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second}, pauses); diff != "" {
		t.Error(diff)
	}
}
