package managed

import (
	"context"
	"encoding/base64"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// in is a Sessions that opens a session of a sandbox's project.
type in struct {
	open

	session Session
}

func (i in) Open(context.Context, domain.Connection, string) (Session, error) { return i.session, nil }

// engine has the sandbox's resource, which is declared and not made.
func (s *sandbox) engine() (Engine, *memory) {
	e, store := newRound()
	e.Sessions = in{session: s.Session}
	m := s.in.Resource
	m.Spec, m.Request, m.ProjectID = s.in.Spec, domain.ManagedCreate, s.ProjectID
	e.Drivers[m.Kind], store.all = s.driver, []domain.Managed{m}
	return e, store
}

// runUntil runs rounds until the only resource is as wanted.
func (s *memory) runUntil(t *testing.T, e Engine, what string, isDone func() bool) {
	t.Helper()
	for end := time.Now().Add(settleFor); ; time.Sleep(stepPause) {
		s.run(t, e)
		switch {
		case isDone():
			return
		case time.Now().After(end):
			t.Fatalf("it is not %s: %+v, %+v", what, s.all, s.members)
		}
	}
}

func (s *memory) isReady() bool { return len(s.all) == 1 && s.all[0].Status == domain.ManagedReady }

func (s *memory) isDeleted() bool { return len(s.all) == 0 }

// unmark removes the marks of a resource's object again and again, as others do: before a round, before a declaration
// and before a deletion. The resource always has one object, the same one, and none is left at the end. ids lists the
// project's objects.
func (s *sandbox) unmark(t *testing.T, remove func(id string), ids func() []string) {
	t.Helper()
	e, store := s.engine()
	store.runUntil(t, e, "ready", store.isReady)
	made := ids()
	if len(made) != 1 {
		t.Fatalf("there are %q", made)
	}
	for _, isDeclared := range []bool{false, true} {
		remove(made[0])
		if isDeclared {
			store.all[0].Request, store.all[0].Status = domain.ManagedUpdate, domain.ManagedUpdating
		}
		store.run(t, e)
		if m := store.all[0]; m.Status != domain.ManagedDegraded || len(m.Drift) == 0 {
			t.Errorf("declared: %t; the missing mark is no drift: %s, %+v", isDeclared, m.Status, m.Drift)
		}
		store.runUntil(t, e, "ready again", store.isReady)
		if now := ids(); !slices.Equal(now, made) {
			t.Errorf("declared: %t; there are %q, want %q", isDeclared, now, made)
		}
		for member := range store.members {
			found, err := s.driver.List(t.Context(), s.Session, nil)
			if o, ok := found[member]; err != nil || !ok || o.ID != made[0] {
				t.Errorf("declared: %t; a list by marks shows %+v, %v", isDeclared, found, err)
			}
		}
	}
	remove(made[0])
	store.all[0].Request = domain.ManagedDelete
	store.runUntil(t, e, "deleted", store.isDeleted)
	if left := ids(); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}

// TestUnmarkedVolume: a volume whose metadata others have replaced stays its resource's.
func TestUnmarkedVolume(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, VolumeDriver{}, domain.VolumeSpec{SizeGB: 1})
	s.unmark(t, func(id string) {
		if err := s.Cloud.SetVolumeMetadata(t.Context(), id, nil, []string{markKey}); err != nil {
			t.Fatal(err)
		}
	}, func() (ids []string) {
		all, err := s.Cloud.Volumes(t.Context(), "", "")
		for _, v := range all {
			ids = append(ids, v.ID)
		}
		return checked(t, ids, err)
	})
}

// TestUnmarkedImage: an image whose tags others have removed stays its resource's.
func TestUnmarkedImage(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, ImageDriver{}, domain.ImageSpec{
		DiskFormat: "raw", Content: base64.StdEncoding.EncodeToString([]byte("canary")),
	})
	s.unmark(t, func(id string) {
		if err := s.Cloud.ChangeImage(t.Context(), id, domain.ImageChange{Tags: []string{}}); err != nil {
			t.Fatal(err)
		}
	}, func() (ids []string) {
		all, err := s.Cloud.TaggedImages(t.Context(), s.ProjectID, "")
		for _, i := range all {
			ids = append(ids, i.ID)
		}
		return checked(t, ids, err)
	})
}

// TestLongUnmarkedBalancer: a load balancer whose tags others have removed stays its resource's.
func TestLongUnmarkedBalancer(t *testing.T) {
	t.Parallel()
	s := newSandbox(t, NewBalancerDriver(), domain.BalancerSpec{Network: testkit.Sandbox(t).Network})
	s.unmark(t, func(id string) {
		if err := s.Cloud.RenameLoadBalancer(t.Context(), id, "thing", []string{}); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(settleFor); time.Now().Before(end); time.Sleep(stepPause) {
			if b, err := s.Cloud.LoadBalancer(t.Context(), s.ProjectID, id); err != nil || b.Status == "ACTIVE" {
				return
			}
		}
	}, func() (ids []string) {
		all, err := s.Cloud.LoadBalancers(t.Context(), s.ProjectID, "")
		for _, b := range all {
			if b.Status != "DELETED" {
				ids = append(ids, b.ID)
			}
		}
		return checked(t, ids, err)
	})
}

func checked(t *testing.T, ids []string, err error) []string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// TestByMark: a member keeps the object that is stored, whatever else has its mark.
func TestByMark(t *testing.T) {
	t.Parallel()
	member := domain.Member{ID: uuid.New()}
	at := func(id string, after time.Duration) Object { return Object{ID: id, CreatedAt: testNow.Add(after)} }
	member.CreateCalls = 2
	for stored, want := range map[string][]string{
		"":         {"first", "twin"}, // the oldest one, and what another call made soon before or after it
		"first":    {"first", "twin"},
		"twin":     {"twin", "first"},
		"copy":     {"copy"},
		"unmarked": {"first", "twin"},
	} {
		member.ObjectID = stored
		o := byMark(map[uuid.UUID][]Object{
			member.ID: {at("copy", time.Hour), at("twin", time.Minute), at("first", 0)},
		}, []domain.Member{member})[member.ID]
		got := []string{o.ID}
		for _, extra := range o.Extra {
			got = append(got, extra.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("stored is %q: %q, want %q", stored, got, want)
		}
	}
}

// TestSurplus: an object with a mark that belongs to no member is reported when two scans have found it, as drift of
// the resource that has its name, and stays. What a deletion has left as an orphan is not reported.
func TestSurplus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s, d, p := newFleet(2)
		d.found[uuid.New()] = Object{ID: "twin", Name: "web-a", State: ObjectReady, Raw: "it"}
		d.found[uuid.New()] = Object{ID: "left", Name: "web-a", State: ObjectReady, Raw: "it"}
		d.found[uuid.New()] = Object{ID: "other", Name: "other", State: ObjectReady, Raw: "it"}
		for id, own := range d.found { // a server carries the id of its order, too
			if own.ID == "s-web-b" {
				d.found[uuid.NewSHA1(id, nil)] = own
			}
		}
		s.orphans = []string{"left"}
		drift := func(what string, want ...string) {
			t.Helper()
			m := s.all[0]
			isDrifted := len(m.Drift) == 1 && m.Drift[0].Field == surplusField && m.Drift[0].Actual == "twin"
			if isDrifted != (len(want) > 0) || (m.Status == domain.ManagedDegraded) != isDrifted {
				t.Errorf("%s it is %s, %+v", what, m.Status, m.Drift)
			}
			if len(s.all[1].Drift) > 0 || len(d.deleted) > 0 {
				t.Errorf("%s: the other one has %+v, and %q are deleted", what, s.all[1].Drift, d.deleted)
			}
		}
		scan := func() { p.ScanAt = time.Now(); s.runProject(t, e, p) }
		scan()
		drift("after the first scan")
		time.Sleep(scanPause)
		scan()
		drift("after the second scan", "twin")
		if s.listed != 1 || !slices.Contains(s.marked, "twin") {
			t.Errorf("%d listings have shown %q", s.listed, s.marked)
		}
		if len(s.found) != 3 {
			t.Errorf("unexpected are %v", s.found)
		}
		s.listed = 0
		p.ScanAt, s.all[0].NextAt = time.Now().Add(scanPause), time.Now()
		s.runProject(t, e, p)
		drift("between scans", "twin")
		if s.listed > 0 {
			t.Error("what no scan has listed counts as missed")
		}
		for id, o := range d.found {
			if o.ID == "twin" {
				delete(d.found, id)
			}
		}
		scan()
		drift("when it is deleted")
		if s.listed != 1 || slices.Contains(s.marked, "twin") {
			t.Errorf("%d listings have shown %q", s.listed, s.marked)
		}
	})
}

// TestNamesOfSurplus: an object is reported of the resource whose objects have such names.
func TestNamesOfSurplus(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"web-0": true, "web-12": true, "web": false, "web-": false, "web-01": false, "web-x": false, "web-a-0": false,
	} {
		m := &resource{Managed: domain.Managed{Kind: domain.KindDeployment, Name: "web"}}
		if is := m.isNamed(domain.UnexpectedObject{Name: name, Provider: "nova"}); is != want {
			t.Errorf("%s: %t", name, is)
		}
	}
	m := &resource{Managed: domain.Managed{Kind: domain.KindVolume, Name: "web-0"}}
	if m.isNamed(domain.UnexpectedObject{Name: "web-0", Provider: "nova"}) {
		t.Error("a server is reported of a volume")
	}
}
