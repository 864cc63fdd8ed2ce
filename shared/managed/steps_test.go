package managed

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// changingDriver has one object, which lacks what left says until an update succeeds.
type changingDriver struct {
	scripted

	left     []Difference
	errs     []error // of the next updates
	checkErr error
}

func (d *changingDriver) Differences(Wanted, Object) []Difference { return slices.Clone(d.left) }

func (d *changingDriver) Update(context.Context, Session, Wanted, Object, []Difference) error {
	if len(d.errs) > 0 {
		err := d.errs[0]
		d.errs = d.errs[1:]
		return err
	}
	d.left = nil
	return nil
}

func (d *changingDriver) Find(_ context.Context, _ Session, id string) (Object, error) {
	for _, o := range d.found {
		if o.ID == id {
			return o, nil
		}
	}
	return Object{}, apperr.New(apperr.NotFound, "no server %s", id)
}

func (d *changingDriver) Check(context.Context, Session, Wanted) error { return d.checkErr }

// newChange has a server of revision 1, which is to have revision 2. change changes its member.
func newChange(left Difference, change func(*domain.Member)) (Engine, *memory, *changingDriver) {
	d := &changingDriver{scripted: scripted{kind: domain.KindMachine}, left: []Difference{left}}
	e, s := newRound(&d.scripted)
	e.Drivers[domain.KindMachine] = d
	m := &s.all[0]
	m.Revision, m.ObservedRevision, m.Request = 2, 1, domain.ManagedUpdate
	m.Spec = []byte(`{"volumes": ["data"], "update": "replace"}`)
	member := domain.Member{
		ID: uuid.New(), ManagedID: m.ID, Revision: 1, ObjectID: "s", Status: domain.MemberReady, WasReady: true,
		UpdatedAt: time.Now(),
	}
	change(&member)
	s.members[member.ID] = member
	d.found = map[uuid.UUID]Object{member.ID: {ID: "s", State: ObjectReady, Raw: "it"}}
	return e, s, d
}

// only is the only member.
func (s *memory) only(t *testing.T) (found domain.Member) {
	t.Helper()
	for _, found = range s.members {
	}
	if len(s.members) != 1 {
		t.Errorf("there are the members %+v", s.members)
	}
	return found
}

// pauses runs so often, each time when the member may be tried again, and returns the pauses in seconds.
func (s *memory) pauses(t *testing.T, e Engine, times int) (seconds []int) {
	t.Helper()
	for range times {
		s.run(t, e)
		m := s.only(t)
		left := max(time.Until(m.RetryAt), 0)
		seconds = append(seconds, int(left.Seconds()))
		time.Sleep(left)
	}
	return seconds
}

// TestReplacedOnlyIfPossible: a server whose replacement cannot be made, because what it names is not the user's any
// more, is not deleted. It is tried twice, and the reason shows why. Another declaration goes on.
func TestReplacedOnlyIfPossible(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		isMade := false
		e, s, d := newChange(Difference{Field: "configmaps", Way: Replace}, func(*domain.Member) {})
		d.create = func() error { isMade = true; return nil }
		d.checkErr = apperr.InvalidField("spec.key_name", "there is no key pair \"k\"")
		if got := s.pauses(t, e, 2); !slices.Equal(got, []int{5, 10}) {
			t.Errorf("it pauses for %d s", got)
		}
		s.run(t, e)
		m := s.all[0]
		if len(d.deleted) > 0 || isMade || m.Status != domain.ManagedError ||
			!strings.Contains(m.Reason, "not replaced") || !strings.Contains(m.Reason, `no key pair "k"`) {
			t.Errorf("deleted %q, made %t: it is %s, %s", d.deleted, isMade, m.Status, m.Reason)
		}
		n := slices.IndexFunc(m.Conditions, func(c domain.Condition) bool {
			return c.Type == domain.ConditionProgressing
		})
		if c := m.Conditions[n]; c.Status != "False" || c.Reason != "ReplacementsFailed" {
			t.Errorf("it has %+v", c)
		}
		member := s.only(t)
		member.Attempts, member.RetryAt = 0, time.Time{}
		s.members[member.ID], d.checkErr = member, nil
		s.all[0].NextAt = time.Now()
		if s.run(t, e); len(d.deleted) != 1 || !isMade {
			t.Errorf("then it is deleted: %q, and made: %t", d.deleted, isMade)
		}
	})
}

// TestNewServerIsCompleted: what a new server lacks is added until that succeeds, after pauses that grow, also in an
// update that stops after two failures. It is never drift, and the reason is that of the call.
func TestNewServerIsCompleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		isNew := func(m *domain.Member) { m.Revision, m.Status, m.WasReady = 2, domain.MemberCreating, false }
		e, s, d := newChange(Difference{Field: "tags.a", Declared: "a", Way: InPlace}, isNew)
		rejected := apperr.New(apperr.Invalid, "nova rejects the tag")
		away := apperr.New(apperr.Unavailable, "nova rejects nothing, and is away")
		d.errs = []error{away, rejected, rejected, rejected}
		for n, want := range []int{5, 10, 20, 40} {
			if got := s.pauses(t, e, 1); got[0] != want {
				t.Errorf("after failure %d it pauses for %d s", n+1, got)
			}
			m := s.all[0]
			if m.Status != domain.ManagedError || !strings.Contains(m.Reason, "nova rejects") || len(m.Drift) > 0 {
				t.Errorf("after failure %d it is %s, %s, with the drift %+v", n+1, m.Status, m.Reason, m.Drift)
			}
		}
		for range 2 {
			s.run(t, e)
		}
		if m := s.all[0]; m.Status != domain.ManagedReady || !s.only(t).WasReady || len(d.left) > 0 {
			t.Errorf("it is %s, %s, with %+v", m.Status, m.Reason, s.members)
		}
	})
}

// TestWaitsForLonger: a step that waits for something else is tried again after pauses that grow to a minute. That is
// no failure.
func TestWaitsForLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s, d := newChange(Difference{Field: "volumes.data", Declared: "v", Way: InPlace}, func(*domain.Member) {})
		for range 7 {
			d.errs = append(d.errs, Waits("VolumeInUse", "volume data is attached to server x"))
		}
		if got := s.pauses(t, e, 6); !slices.Equal(got, []int{5, 10, 20, 40, 60, 60}) {
			t.Errorf("it pauses for %d s", got)
		}
		m := s.all[0]
		if m.Status != domain.ManagedUpdating || m.Reason != "volume data is attached to server x" ||
			s.only(t).Attempts > 0 {
			t.Errorf("it is %s, %s, with %+v", m.Status, m.Reason, s.members)
		}
		s.run(t, e)
		time.Sleep(driftPause / 2)
		if s.run(t, e); s.all[0].Status != m.Status || s.all[0].Reason != m.Reason {
			t.Errorf("in the pause it is %s, %s", s.all[0].Status, s.all[0].Reason)
		}
	})
}

// TestExtraWritesNoMember: the deletion of an object that was made twice writes nothing of the member, whose own step
// may have stored something since.
func TestExtraWritesNoMember(t *testing.T) {
	t.Parallel()
	e, s, d := newChange(Difference{}, func(m *domain.Member) { m.Revision = 2 })
	d.left = nil
	for id, o := range d.found {
		o.Extra = []Object{{ID: "extra", State: ObjectReady}}
		d.found[id] = o
	}
	if s.run(t, e); s.saves > 0 || !slices.Equal(d.deleted, []string{"extra"}) {
		t.Errorf("it deletes %q, and writes members %d times", d.deleted, s.saves)
	}
}

// TestServersWithVolumesGoFirst: a server with volumes is deleted before the one that replaces it is made, and others
// after that.
func TestServersWithVolumesGoFirst(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{`{}`: "create 0", `{"volumes": ["data"]}`: "create 0, delete 0"} {
		m := resource{Managed: domain.Managed{Kind: domain.KindMachine, Revision: 2, Spec: []byte(spec)}}
		p := decide(m.target(), []seen{member(0, unlike(Replace, true))}, testNow)
		if got := stepsOf(p); got != want {
			t.Errorf("%s: it takes the steps %q, want %q", spec, got, want)
		}
	}
}
