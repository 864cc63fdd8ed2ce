package managed

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// in is a Sessions that opens a session of a sandbox's project.
type in struct {
	open

	session Session
}

func (i in) Open(context.Context, domain.Connection, string) (Session, error) { return i.session, nil }

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

// TestUnexpected: an object with a mark that belongs to no member is reported when two scans have found it, as drift of
// the resource that has its name, and stays. What a deletion has left as an orphan is not reported.
func TestUnexpected(t *testing.T) {
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
			isDrifted := len(m.Drift) == 1 && m.Drift[0].Field == unexpectedField && m.Drift[0].Actual == "twin"
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

// TestNamesOfUnexpected: an object is reported of the resource whose objects have such names.
func TestNamesOfUnexpected(t *testing.T) {
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
