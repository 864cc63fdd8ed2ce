package managed

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// sameCloud has a flavor, an image, two networks and three security groups.
type sameCloud struct {
	Cloud

	err error // of Neutron and Glance
}

func (sameCloud) Flavors(context.Context) ([]domain.Flavor, error) {
	return []domain.Flavor{{ID: "1", Name: "tiny"}}, nil
}

func (c sameCloud) Networks(context.Context) ([]domain.Network, error) {
	return []domain.Network{{ID: "n1", Name: "private"}, {ID: "n2", Name: "public", External: true}}, c.err
}

func (c sameCloud) SecurityGroups(context.Context) ([]domain.SecurityGroup, error) {
	return []domain.SecurityGroup{{ID: "g1", Name: "default"}, {ID: "g2", Name: "web"}, {ID: "g3", Name: "db"}}, c.err
}

func (sameCloud) Image(context.Context, string) (domain.Image, error) {
	return domain.Image{}, apperr.New(apperr.NotFound, "no such image")
}

func (c sameCloud) Images(context.Context, string) ([]domain.Image, error) {
	return []domain.Image{{ID: imageOne, Name: "cirros", Status: "active"}}, c.err
}

// matchedInPass is the resource after a pass has compared its member with the object.
func matchedInPass(t *testing.T, cloud Cloud, in Desired, o Object, since ...domain.Revision) *resource {
	t.Helper()
	m := &resource{Managed: in.Resource, driver: &MachineDriver{}, session: Session{Cloud: cloud}}
	m.Spec, m.Members = in.Spec, []domain.Member{in.Member}
	m.Made = map[int]domain.Revision{in.Made.Number: in.Made}
	for _, r := range since {
		m.Made[r.Number] = r
	}
	(&pass{inventory: in.Inventory}).match(t.Context(), m, map[uuid.UUID]Object{in.Member.ID: o})
	return m
}

// redeclared is a ready server that was made from one spec, and another spec that is declared now.
func redeclared(made, declared string) (Desired, Object) {
	_, in := newFakeNova("tiny")
	in.Resource.Revision, in.Member.Status = 2, domain.MemberReady
	in.Spec, in.Made.Spec = json.RawMessage(declared), json.RawMessage(made)
	return in, machineObject(domain.Server{
		ID: "s", Name: "web", Status: "ACTIVE", Tags: []string{in.Member.ID.String(), markTag},
		Flavor: domain.FlavorRef{ID: "1", Name: "tiny"}, Image: &domain.ImageRef{ID: imageOne},
	})
}

// TestSameSpecWrittenOtherwise: what stands for the same in another spelling or order is no difference, and what stands
// for something else is one.
func TestSameSpecWrittenOtherwise(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		made, declared string // fields
		differs        []string
	}{
		"order of groups":     {`"security_groups": ["web", "db"]`, `"security_groups": ["db", "web"]`, nil},
		"group by id":         {`"security_groups": ["web"]`, `"security_groups": ["g2"]`, nil},
		"group twice":         {`"security_groups": ["web"]`, `"security_groups": ["web", "g2"]`, nil},
		"default group":       {`"security_groups": []`, `"security_groups": ["default"]`, nil},
		"default group by id": {`"security_groups": ["g1"]`, `"tags": []`, nil},
		"other group": {
			`"security_groups": ["web"]`, `"security_groups": ["db"]`, []string{"security_groups"},
		},
		"group more":          {`"security_groups": ["web"]`, `"security_groups": ["web", "db"]`, []string{"security_groups"}},
		"network by id":       {`"networks": ["private"]`, `"networks": ["n1"]`, nil},
		"only network":        {`"networks": ["private"]`, `"networks": []`, nil},
		"other network":       {`"networks": ["private"]`, `"networks": ["n2"]`, []string{"networks"}},
		"image by name":       {`"image": "` + imageOne + `"`, `"image": "cirros"`, nil},
		"image by id":         {`"image": "cirros"`, `"image": "` + imageOne + `"`, nil},
		"other image":         {`"image": "cirros"`, `"image": "` + imageTwo + `"`, []string{"image"}},
		"order of configmaps": {`"configmaps": ["a", "b"]`, `"configmaps": ["b", "a"]`, nil},
		"other configmap":     {`"configmaps": ["a", "b"]`, `"configmaps": ["b"]`, []string{"configmaps"}},
	} {
		for _, update := range []string{domain.UpdateReplace, domain.UpdateInPlace} {
			base := `{"flavor": "tiny", "update": "` + update + `", `
			in, o := redeclared(base+tc.made+"}", base+tc.declared+"}")
			var got []string
			for _, one := range matchedInPass(t, sameCloud{}, in, o).members[0].differences {
				got = append(got, one.Field)
			}
			if !slices.Equal(got, tc.differs) {
				t.Errorf("%s, %s: it differs in %q, want %q", name, update, got, tc.differs)
			}
		}
	}
}

// TestHalfDeclared: what a revision has changed of a server that was never as it declared is a difference from the next
// one, although the server's own revision declares what the next one does.
func TestHalfDeclared(t *testing.T) {
	t.Parallel()
	const declared = `{"flavor": "tiny", "image": "` + imageTwo + `", "tags": ["a"], "metadata": {"b": "1"}}`
	in, o := redeclared(declared, declared)
	in.Member.Revision, in.Resource.Revision, in.Made.Number = 1, 3, 1
	in.Member.IsRebuilt = true
	server, _ := o.Raw.(domain.Server)
	server.Tags, server.Metadata = append(server.Tags, "a", "c", "others"), map[string]string{"b": "1", "d": "2"}
	o.Raw = server
	m := matchedInPass(t, sameCloud{}, in, o, domain.Revision{
		Number: 2, Spec: []byte(`{"flavor": "tiny", "image": "cirros", "tags": ["c"], "metadata": {"d": "2"}}`),
	})
	var got []string
	for _, one := range m.members[0].differences {
		got = append(got, one.Field)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"image", "metadata.d", "tags.c"}) {
		t.Errorf("it differs in %q", got)
	}
}

// TestImageInCapitals: Glance and Nova show ids in small letters.
func TestImageInCapitals(t *testing.T) {
	t.Parallel()
	const id = "abcdefab-1111-4111-8111-111111111111"
	spec := domain.MachineSpec{Image: strings.ToUpper(id)}
	if actual, isOther := otherImage(spec, spec, domain.Server{Image: &domain.ImageRef{ID: id}}); isOther {
		t.Errorf("%s is another image than %s", actual, spec.Image)
	}
}

// TestZoneOfServer: a server that is in the declared zone, or may be in any, is not in another one.
func TestZoneOfServer(t *testing.T) {
	t.Parallel()
	for zone, isSame := range map[string]bool{"nova": true, "": true, "other": false} {
		in, o := redeclared(`{"flavor": "tiny"}`, `{"flavor": "tiny"}`)
		server, _ := o.Raw.(domain.Server)
		server.Zone, in.Made.Schedule.Zone, in.Resource.Schedule.Zone = "nova", "before", zone
		left := matchedInPass(t, sameCloud{}, in, machineObject(server)).members[0].differences
		if len(left) == 0 != isSame {
			t.Errorf("zone %q: %+v", zone, left)
		}
	}
}

// TestNothingIsReplacedForUnknownNames: while Neutron or Glance is unavailable, it is not known what a changed name
// means. Nothing is replaced or refused for it.
func TestNothingIsReplacedForUnknownNames(t *testing.T) {
	t.Parallel()
	cloud := sameCloud{err: apperr.New(apperr.Unavailable, "it is unavailable")}
	for _, change := range [][2]string{
		{`"networks": ["private"]`, `"networks": ["n1"]`},
		{`"security_groups": ["web"]`, `"security_groups": ["g2"]`},
		{`"image": "` + imageOne + `"`, `"image": "cirros"`},
	} {
		base := `{"flavor": "tiny", "update": "replace", `
		in, o := redeclared(base+change[0]+"}", base+change[1]+"}")
		m := matchedInPass(t, cloud, in, o)
		if m.unknown == nil || len(m.members) > 0 {
			t.Errorf("%s: %v, %+v", change[1], m.unknown, m.members)
		}
		in, o = redeclared(base+change[0]+"}", base+change[0]+"}")
		if m := matchedInPass(t, cloud, in, o); m.unknown != nil || len(m.members[0].differences) > 0 {
			t.Errorf("%s as before: %v, %+v", change[0], m.unknown, m.members)
		}
	}
}

// TestRetiredFlavor: a flavor that Nova lists no more is no difference of a server that was made with it, and no server
// is replaced for it. One that others have resized still differs.
func TestRetiredFlavor(t *testing.T) {
	t.Parallel()
	for _, update := range []string{domain.UpdateReplace, domain.UpdateInPlace} {
		for name, tc := range map[string]struct {
			made, declared, real string
			differs              []string
			replaces             bool
		}{
			"unchanged":             {"small-2023", "small-2023", "small64", nil, false},
			"by its name":           {"small64", "small64", "small64", nil, false},
			"from its id to name":   {"small-2023", "small64", "small64", nil, false},
			"resized by others":     {"tiny", "tiny", "small64", []string{"flavor"}, true},
			"to a listed one":       {"small-2023", "tiny", "small64", []string{"flavor"}, true},
			"to one that is absent": {"tiny", "small-2023", "tiny", []string{"flavor"}, true}, // it is looked up before
		} {
			spec := func(flavor, value string) string {
				return `{"flavor": "` + flavor + `", "metadata": {"k": "` + value + `"}, "update": "` + update + `"}`
			}
			in, o := redeclared(spec(tc.made, "a"), spec(tc.declared, "b"))
			server, _ := o.Raw.(domain.Server)
			server.Flavor, server.Metadata = domain.FlavorRef{Name: tc.real}, map[string]string{"k": "a"}
			if tc.real == "tiny" {
				server.Flavor.ID = "1"
			}
			var got []string
			for _, one := range matchedInPass(t, sameCloud{}, in, machineObject(server)).members[0].differences {
				got = append(got, one.Field)
				if one.Way == Replace && !tc.replaces {
					t.Errorf("%s: it is replaced for %s", name, one.Field)
				}
			}
			if want := append([]string{"metadata.k"}, tc.differs...); !slices.Equal(got, want) {
				t.Errorf("%s, %s: it differs in %q, want %q", name, update, got, want)
			}
		}
	}
}

// TestImageAfterRebuild: a server that may have been rebuilt, and is declared with its former image meanwhile, is
// compared by the image that it has. The image of others is the one that had the name when they were made.
func TestImageAfterRebuild(t *testing.T) {
	t.Parallel()
	const spec = `{"flavor": "tiny", "image": "cirros"}`
	for _, tc := range []struct {
		isRebuilt bool
		image     string
		isOther   bool
	}{{true, imageTwo, true}, {true, imageOne, false}, {false, imageTwo, false}} {
		in, o := redeclared(spec, spec)
		in.Member.IsRebuilt, in.Member.UserData = tc.isRebuilt, "digest of a rebuild that may not have been made"
		server, _ := o.Raw.(domain.Server)
		server.Image = &domain.ImageRef{ID: tc.image}
		m := matchedInPass(t, sameCloud{}, in, machineObject(server))
		if got := differs(m.members[0].differences, "image"); got != tc.isOther {
			t.Errorf("%+v: it differs by %+v", tc, m.members[0].differences)
		}
		if isKnown := m.members[0].member.UserData != ""; isKnown == tc.isRebuilt {
			t.Errorf("%+v: which user_data it has is known: %t", tc, isKnown)
		}
	}
}

const (
	groupDefault = "aaaaaaaa-1111-4111-8111-111111111111"
	groupWeb     = "aaaaaaaa-2222-4222-8222-222222222222"
	groupTheirs  = "aaaaaaaa-3333-4333-8333-333333333333"
)

// madeOf are the instances of servers, by the servers' ids.
type madeOf map[string]domain.LaunchSpec

func (m madeOf) Find(_ context.Context, _ domain.Filter, ids []string) ([]domain.Instance, error) {
	found := make([]domain.Instance, len(ids))
	for n, id := range ids {
		if spec, ok := m[id]; ok {
			found[n] = domain.Instance{ServerID: id, Spec: spec}
		}
	}
	return found, nil
}

func (f *fakeNova) ServerPorts(ctx context.Context, _, serverID string) ([]domain.Port, error) {
	if f.portsHang {
		<-ctx.Done()
		return nil, apperr.Wrap(apperr.Timeout, ctx.Err(), "neutron did not answer in time")
	}
	if serverID == "" {
		f.portLists++
		return slices.Clone(f.ports), f.portsErr
	}
	return slices.DeleteFunc(slices.Clone(f.ports), func(port domain.Port) bool {
		return port.DeviceID != serverID
	}), f.portsErr
}

func (f *fakeNova) MarkedServers(context.Context, string) ([]domain.Server, error) {
	other := f.server
	other.ID, other.Tags = "other", []string{uuid.NewString(), markTag}
	return []domain.Server{f.server, other}, nil
}

func (f *fakeNova) AttachInterface(_ context.Context, _, networkID string) error {
	f.calls = append(f.calls, "connect "+networkID)
	port := domain.Port{ID: "new", DeviceID: "s", NetworkID: networkID, Groups: []string{groupDefault}}
	f.ports = append(f.ports, port)
	return nil
}

func (f *fakeNova) SetPortGroups(_ context.Context, id string, groups []string) error {
	f.calls = append(f.calls, "groups "+id)
	for n := range f.ports {
		if f.ports[n].ID == id {
			f.ports[n].Groups = groups
		}
	}
	return nil
}

// connected is a server that was made with two networks and a security group.
func connected(t *testing.T) (*fakeNova, Desired, *MachineDriver) {
	t.Helper()
	nova, in := newFakeNova("tiny")
	in.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "networks": ["private", "back"],
		"security_groups": ["web"]}`)
	in.Made.Spec = in.Spec
	nova.ports = []domain.Port{
		{ID: "p1", DeviceID: "s", NetworkID: "n1", Groups: []string{groupWeb}},
		{ID: "p2", DeviceID: "s", NetworkID: "n2", Groups: []string{groupWeb}},
		{ID: "other", DeviceID: "other", NetworkID: "n3", Groups: []string{groupTheirs}},
	}
	return nova, in, &MachineDriver{Instances: madeOf{"s": {
		NetworkIDs: []string{"n1", "n2"}, SecurityGroups: []string{groupWeb},
	}}}
}

// compared are the differences of a server, each as field, and + if others have added it.
func compared(t *testing.T, driver *MachineDriver, nova *fakeNova, in Desired) (Object, []Difference, string) {
	t.Helper()
	o, err := driver.Find(t.Context(), Session{Cloud: nova}, "s")
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	left := driver.Differences(in, o)
	for _, one := range left {
		sign := "-"
		if one.Actual != nil {
			sign = "+"
		}
		if one.Way != InPlace || one.Disrupts {
			t.Errorf("it is %+v", one)
		}
		fields = append(fields, sign+one.Field)
	}
	return o, left, strings.Join(fields, " ")
}

// TestPortsOfServer: networks and security groups that others take from a server or add to it are drift. They are put
// back in place; an interface that others have added stays.
func TestPortsOfServer(t *testing.T) {
	t.Parallel()
	isOpen := false
	for name, tc := range map[string]struct {
		change func(*fakeNova)
		want   string
		calls  []string // that put it back
	}{
		"as made": {func(*fakeNova) {}, "", nil},
		"a network taken": {func(f *fakeNova) {
			f.ports = slices.Delete(f.ports, 1, 2)
		}, "-networks.back", []string{"connect n2", "groups new"}},
		"a network added": {func(f *fakeNova) {
			theirs := domain.Port{ID: "p4", DeviceID: "s", NetworkID: "n4", Groups: []string{groupTheirs}}
			f.ports = append(f.ports, theirs)
		}, "+networks.n4", nil},
		"a second port": {func(f *fakeNova) {
			f.ports = append(f.ports, domain.Port{ID: "p4", DeviceID: "s", NetworkID: "n1", Groups: []string{groupWeb}})
		}, "", nil},
		"a group taken": {func(f *fakeNova) { f.ports[1].Groups = nil }, "-security_groups.web", []string{"groups p2"}},
		"a group added": {func(f *fakeNova) {
			f.ports[0].Groups = []string{groupTheirs, groupWeb}
		}, "+security_groups." + groupTheirs, []string{"groups p1"}},
		"a port without security": {func(f *fakeNova) {
			f.ports[0].Groups, f.ports[0].IsSecured = nil, &isOpen
		}, "", nil},
		"ports are withheld": {func(f *fakeNova) {
			f.ports, f.portsErr = nil, apperr.New(apperr.Forbidden, "withheld")
		}, "", nil},
		"Neutron is unavailable": {func(f *fakeNova) {
			f.ports, f.portsErr = nil, apperr.New(apperr.Unavailable, "it is unavailable")
		}, "", nil},
	} {
		nova, in, driver := connected(t)
		tc.change(nova)
		o, left, fields := compared(t, driver, nova, in)
		if fields != tc.want {
			t.Errorf("%s: it differs by %q, want %q", name, fields, tc.want)
		}
		for range 3 {
			left = slices.DeleteFunc(left, func(one Difference) bool { return one.Stays })
			if len(left) == 0 {
				break
			}
			if err := driver.Update(t.Context(), Session{Cloud: nova}, in, o, left); err != nil {
				t.Fatal(err)
			}
			o, left, _ = compared(t, driver, nova, in)
		}
		if diff := cmp.Diff(tc.calls, nova.calls); diff != "" || len(left) > 0 {
			t.Errorf("%s: %s, and it differs by %+v", name, diff, left)
		}
	}
}

// TestPortsAreNotKnown: what a server was made of is not known without its instance. Groups that are not declared are
// not compared.
func TestPortsAreNotKnown(t *testing.T) {
	t.Parallel()
	nova, in, driver := connected(t)
	nova.ports = nil
	if _, _, fields := compared(t, driver, nova, in); fields != "-networks.private -networks.back" {
		t.Errorf("without ports: %s", fields)
	}
	if _, _, fields := compared(t, &MachineDriver{Instances: madeOf{}}, nova, in); fields != "" {
		t.Errorf("without its instance: %s", fields)
	}
	nova, in, driver = connected(t)
	driver.Instances = madeOf{"s": {NetworkIDs: []string{"n1", "n2"}}}
	nova.ports[0].Groups = []string{groupTheirs}
	if _, _, fields := compared(t, driver, nova, in); fields != "" {
		t.Errorf("groups that are not declared: %s", fields)
	}
}

// TestServersWithoutNeutron: servers are listed and read while Neutron is unavailable or hangs, within the time of a
// list, and nothing is known of their ports.
func TestServersWithoutNeutron(t *testing.T) {
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			nova, in, driver := connected(t)
			nova.portsHang, nova.portsErr = hangs, apperr.New(apperr.Unavailable, "it is unavailable")
			s := Session{Cloud: nova, lists: &lists{}}
			limited, cancel := context.WithTimeout(t.Context(), listTime)
			defer cancel()
			found, err := driver.List(limited, s, []domain.Member{in.Member})
			if err != nil || len(found) != 2 || found[in.Member.ID].State != ObjectReady {
				t.Fatalf("hangs %t: listed are %+v: %v", hangs, found, err)
			}
			for range mostFinds {
				o, err := driver.Find(limited, s, "s")
				if err != nil || o.State != ObjectReady || limited.Err() != nil {
					t.Fatalf("hangs %t: found is %+v: %v", hangs, o, err)
				}
				for _, one := range []Object{o, found[in.Member.ID]} {
					if left := driver.Differences(in, one); len(left) > 0 || raw[domain.Server](one).Ports != nil {
						t.Errorf("hangs %t: it differs by %+v", hangs, left)
					}
				}
			}
		})
	}
}

// TestPortsOfOneServer: a server that is read by its id takes no list of all ports of its project, and two that are
// listed take one.
func TestPortsOfOneServer(t *testing.T) {
	t.Parallel()
	nova, in, driver := connected(t)
	s := Session{Cloud: nova, lists: &lists{}}
	o, err := driver.Find(t.Context(), s, "s")
	if err != nil || len(raw[domain.Server](o).Ports) != 2 || nova.portLists != 0 {
		t.Errorf("after %d lists of ports it is %+v: %v", nova.portLists, o, err)
	}
	found, err := driver.List(t.Context(), s, []domain.Member{in.Member})
	if err != nil || len(raw[domain.Server](found[in.Member.ID]).Ports) != 2 || nova.portLists != 1 {
		t.Errorf("after %d lists of ports they are %+v: %v", nova.portLists, found, err)
	}
}

// TestAddedStays: what others have added, and what stays, is drift whatever else is done.
func TestAddedStays(t *testing.T) {
	t.Parallel()
	s := member(0, func(s *observed) { s.added = []Difference{{Field: "networks.n4", Actual: "n4", Stays: true}} })
	for _, t2 := range []target{single(), changed(single(), func(t *target) { t.repairs = true })} {
		p := decide(t2, []observed{s}, testNow)
		if len(p.steps) > 0 || len(p.drift) != 1 || p.drift[0].Field != "networks.n4" || p.updated != 1 {
			t.Errorf("it is %+v", p)
		}
	}
}
