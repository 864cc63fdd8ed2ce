package managed

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// newFleet has count servers that are ready and settled, and were scanned.
func newFleet(count int) (Engine, *memory, *scripted, domain.ManagedProject) {
	d := &scripted{kind: domain.KindMachine, found: map[uuid.UUID]Object{}}
	e, s := newPass()
	e.Drivers[domain.KindMachine] = d
	for n := range count {
		m := domain.Managed{
			ID: uuid.New(), Kind: domain.KindMachine, Name: "web-" + string(rune('a'+n)), Revision: 1,
			ObservedRevision: 1, Status: domain.ManagedReady, Spec: []byte("{}"),
		}
		member := domain.Member{
			ID: uuid.New(), ManagedID: m.ID, Revision: 1, ObjectID: "s-" + m.Name, Status: domain.MemberReady,
			WasReady: true, MayHaveData: true,
		}
		s.all, s.members[member.ID] = append(s.all, m), member
		d.found[member.ID] = Object{ID: member.ObjectID, State: ObjectReady, Raw: "it"}
	}
	return e, s, d, domain.ManagedProject{ScanAt: time.Now().Add(scanPause)}
}

func (s *memory) runProject(t *testing.T, e Engine, p domain.ManagedProject) {
	t.Helper()
	if err := e.Run(t.Context(), domain.NewClaim(), p); err != nil {
		t.Error(err)
	}
}

// TestOnlyWhatIsDue: a pass reads the servers of resources that are due: few by their ids, many in one list. Others
// are neither read nor written until the next scan.
func TestOnlyWhatIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s, d, p := newFleet(20)
		s.runProject(t, e, p)
		if d.lists > 0 || len(d.finds) > 0 || s.dueIn != scanPause || s.scanned {
			t.Errorf("all is settled: %d lists, %q, due in %s, scanned %t", d.lists, d.finds, s.dueIn, s.scanned)
		}
		s.all[3].NextAt = time.Now()
		s.runProject(t, e, p)
		if d.lists > 0 || !slices.Equal(d.finds, []string{"s-web-d"}) || !s.all[3].NextAt.IsZero() {
			t.Errorf("one is due: %d lists, %q, next at %s", d.lists, d.finds, s.all[3].NextAt)
		}
		for n := range 11 {
			s.all[n].NextAt = time.Now()
		}
		s.runProject(t, e, p)
		if d.lists != 1 || len(d.finds) != 1 {
			t.Errorf("11 are due: %d lists, %q", d.lists, d.finds)
		}
		p.ScanAt = time.Now()
		s.runProject(t, e, p)
		if d.lists != 2 || !s.scanned {
			t.Errorf("a scan is due: %d lists, scanned %t", d.lists, s.scanned)
		}
	})
}

// TestDueServerIsDeleted: a server that is read by its id and is not there counts as deleted when it is read again half
// a minute later. Until then nothing changes.
func TestDueServerIsDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s, d, p := newFleet(1)
		clear(d.found)
		s.all[0].NextAt = time.Now()
		s.runProject(t, e, p)
		if m := s.all[0]; m.Status != domain.ManagedReady || len(m.Drift) > 0 || s.dueIn != domain.MissedFor ||
			len(d.finds) != 1 {
			t.Errorf("after %q it is %+v, and due in %s", d.finds, m, s.dueIn)
		}
		time.Sleep(s.dueIn)
		s.runProject(t, e, p)
		if m := s.all[0]; m.Status != domain.ManagedDegraded || len(m.Drift) != 1 || m.Drift[0].Field != "exists" ||
			len(d.finds) != 2 || !m.NextAt.IsZero() {
			t.Errorf("after %q it is %+v", d.finds, m)
		}
	})
}

// TestDueServerCannotBeRead: when Nova does not answer, the resource stays due, and nothing else changes.
func TestDueServerCannotBeRead(t *testing.T) {
	t.Parallel()
	e, s, d, p := newFleet(1)
	d.findErr, s.all[0].NextAt = apperr.New(apperr.Unavailable, "nova is unavailable"), time.Now().Add(-time.Second)
	s.runProject(t, e, p)
	if m := s.all[0]; m.Status != domain.ManagedReady || m.NextAt.IsZero() || s.dueIn != shortestPause {
		t.Errorf("it is %+v, and due in %s", m, s.dueIn)
	}
	if c := s.all[0].Conditions; len(c) != 1 || c[0].Reason != "NotObserved" {
		t.Errorf("its conditions are %+v", c)
	}
}

// naming is a driver of servers that name volumes.
type naming struct{ *scripted }

func (naming) Needs(spec json.RawMessage) []Ref { return (*MachineDriver)(nil).Needs(spec) }

// TestServerOfUnsettledVolume: a server is looked at while a volume that it names is not settled.
func TestServerOfUnsettledVolume(t *testing.T) {
	t.Parallel()
	e, s, d, p := newFleet(2)
	e.Drivers[domain.KindMachine], e.Drivers[domain.KindVolume] = naming{d}, &scripted{kind: domain.KindVolume}
	s.all[1].Spec = []byte(`{"volumes": ["data"]}`)
	s.all = append(s.all, domain.Managed{
		ID: uuid.New(), Kind: domain.KindVolume, Name: "data", Revision: 1, ObservedRevision: 1,
		Status: domain.ManagedReady, Spec: []byte("{}"), NextAt: time.Now().Add(time.Minute),
	})
	s.runProject(t, e, p)
	if !slices.Equal(d.finds, []string{"s-web-b"}) {
		t.Errorf("it reads %q", d.finds)
	}
}

// TestStatusInPause: a creation that has failed is an error until it is repeated, and says why.
func TestStatusInPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		volumes := &scripted{kind: domain.KindVolume, create: func() error {
			return apperr.New(apperr.Unavailable, "cinder is unavailable")
		}}
		e, s := newPass(volumes)
		for n := range 3 {
			s.run(t, e)
			if m := s.all[0]; m.Status != domain.ManagedError || m.Reason != "cinder is unavailable" {
				t.Errorf("in pass %d it is %s, %s", n, m.Status, m.Reason)
			}
			time.Sleep(time.Second)
		}
		volumes.create = nil
		time.Sleep(shortestPause)
		s.run(t, e)
		if m := s.all[0]; m.Status != domain.ManagedCreating {
			t.Errorf("then it is %s, %s", m.Status, m.Reason)
		}
	})
}
