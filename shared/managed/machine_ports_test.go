package managed

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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
func connected(t *testing.T) (*fakeNova, Wanted, *MachineDriver) {
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
func compared(t *testing.T, driver *MachineDriver, nova *fakeNova, in Wanted) (Object, []Difference, string) {
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
	s := member(0, func(s *seen) { s.added = []Difference{{Field: "networks.n4", Actual: "n4", Stays: true}} })
	for _, t2 := range []target{single(), changed(single(), func(t *target) { t.repairs = true })} {
		p := decide(t2, []seen{s}, testNow)
		if len(p.steps) > 0 || len(p.drift) != 1 || p.drift[0].Field != "networks.n4" || p.updated != 1 {
			t.Errorf("it is %+v", p)
		}
	}
}
