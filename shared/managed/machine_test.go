package managed

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// fakeNova has one server. It takes a resize only of a server that is ACTIVE, as Nova does.
type fakeNova struct {
	Cloud

	server domain.Server
	cells  error // why a cell is down
	tagErr error
	calls  []string
	ports  []domain.Port

	portsErr  error
	portsHang bool
	portLists int // of all ports of the project
}

func (f *fakeNova) Flavors(context.Context) ([]domain.Flavor, error) {
	return []domain.Flavor{{ID: "1", Name: "tiny"}, {ID: "2", Name: "small"}, {ID: "3", Name: "large"}}, nil
}

func (f *fakeNova) ResizeServer(_ context.Context, _, flavorID string) error {
	f.calls = append(f.calls, "resize "+flavorID)
	if f.server.Status != "ACTIVE" {
		return apperr.New(apperr.Conflict, "cannot resize in %s", f.server.Status)
	}
	flavors, _ := f.Flavors(context.Background())
	n := slices.IndexFunc(flavors, func(one domain.Flavor) bool { return one.ID == flavorID })
	f.server.Flavor, f.server.Status = domain.FlavorRef{ID: flavorID, Name: flavors[n].Name}, resized
	return nil
}

func (f *fakeNova) ConfirmMigration(context.Context, string) error {
	f.calls = append(f.calls, "confirm")
	f.server.Status = "ACTIVE"
	return nil
}

func (f *fakeNova) TagServer(_ context.Context, _, tag string) error {
	if f.tagErr != nil {
		return f.tagErr
	}
	f.calls = append(f.calls, "tag "+tag)
	f.server.Tags = append(f.server.Tags, tag)
	return nil
}

func (f *fakeNova) UntagServer(_ context.Context, _, tag string) error {
	f.calls = append(f.calls, "untag "+tag)
	f.server.Tags = slices.DeleteFunc(f.server.Tags, func(one string) bool { return one == tag })
	return nil
}

func (f *fakeNova) Server(_ context.Context, id string) (domain.Server, error) {
	if id != f.server.ID {
		return domain.Server{}, apperr.New(apperr.NotFound, "no server %s", id)
	}
	return f.server, nil
}

func (f *fakeNova) AttachVolume(_ context.Context, _ string, v domain.ServerVolume) error {
	f.calls = append(f.calls, "attach "+v.ID)
	return nil
}

func (f *fakeNova) DetachVolume(_ context.Context, _, id string) error {
	f.calls = append(f.calls, "detach "+id)
	return nil
}

func (*fakeNova) Networks(context.Context) ([]domain.Network, error) {
	return []domain.Network{{ID: "n", Name: "private", Subnets: []domain.Subnet{{ID: "s"}}}}, nil
}

func (*fakeNova) SecurityGroups(context.Context) ([]domain.SecurityGroup, error) {
	return []domain.SecurityGroup{{ID: "g", Name: "default"}}, nil
}

func (*fakeNova) Images(_ context.Context, name string) (found []domain.Image, err error) {
	if name == "cirros" {
		found = []domain.Image{{ID: "i", Name: name, Status: "active"}}
	}
	return found, nil
}

func (*fakeNova) KeyPairs(context.Context) ([]domain.KeyPair, error) {
	return []domain.KeyPair{{Name: "mine"}}, nil
}

func (*fakeNova) Zones(context.Context) ([]domain.Zone, error) {
	return []domain.Zone{{Name: "nova", Available: true}, {Name: "down"}}, nil
}

func (f *fakeNova) CellsUp(context.Context, string) error { return f.cells }

// newFakeNova has the ready server of a member, which is desired with the flavor.
func newFakeNova(flavor string) (*fakeNova, Desired) {
	id := uuid.New()
	in := Desired{
		Resource: domain.Managed{Kind: domain.KindMachine, Name: "web", Revision: 1}, Name: "web",
		Member:    domain.Member{ID: id, Revision: 1, ObjectID: "s", Status: domain.MemberUpdating},
		Spec:      []byte(`{"flavor": "` + flavor + `", "image": "cirros", "networks": ["private"]}`),
		Inventory: NewInventory(nil, nil),
	}
	in.Made = domain.Revision{Number: 1, Spec: in.Spec}
	return &fakeNova{server: domain.Server{
		ID: "s", Name: "web", Status: "ACTIVE", Tags: []string{id.String(), markTag},
		Flavor: domain.FlavorRef{ID: "1", Name: "tiny"},
	}}, in
}

// TestTagsInPlace: tags that are declared are added and removed in place, and those of others stay.
func TestTagsInPlace(t *testing.T) {
	t.Parallel()
	nova, in := newFakeNova("tiny")
	in.Made.Number = 0
	in.Made.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "networks": ["private"], "tags": ["a", "b"]}`)
	in.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "networks": ["private"], "tags": ["b", "c"]}`)
	nova.server.Tags = append(nova.server.Tags, "a", "b", "theirs")
	nova.settle(t, in)
	if want := []string{"untag a", "tag c"}; !slices.Equal(nova.calls, want) {
		t.Errorf("it calls %q, want %q", nova.calls, want)
	}
	if !slices.Contains(nova.server.Tags, "theirs") {
		t.Errorf("the tags are %q", nova.server.Tags)
	}
}

// settle takes steps until nothing differs, and fails on the first that does not succeed.
func (f *fakeNova) settle(t *testing.T, in Desired) {
	t.Helper()
	driver := &MachineDriver{}
	for range 10 {
		o := machineObject(f.server)
		left := driver.Differences(in, o)
		if len(left) == 0 {
			return
		}
		if err := driver.Update(t.Context(), Session{Cloud: f}, in, o, left); err != nil {
			t.Fatalf("after %q: %v", f.calls, err)
		}
	}
	t.Errorf("it does not end: %q", f.calls)
}

// TestResizedServerGetsAnotherFlavor: a server that waits for the confirmation of a resize, when another flavor is
// declared, is confirmed before it is resized again.
func TestResizedServerGetsAnotherFlavor(t *testing.T) {
	t.Parallel()
	for flavor, want := range map[string][]string{
		"tiny":  {"confirm", "resize 1", "confirm"},
		"large": {"confirm", "resize 3", "confirm"},
		"small": {"confirm"},
	} {
		nova, in := newFakeNova(flavor)
		nova.server.Status, nova.server.Flavor = resized, domain.FlavorRef{ID: "2", Name: "small"}
		nova.settle(t, in)
		if diff := cmp.Diff(want, nova.calls); diff != "" {
			t.Errorf("%s: %s", flavor, diff)
		}
	}
}

// TestTagsAreRemoved: a server whose tags others have removed is found by its id, and gets them back.
func TestTagsAreRemoved(t *testing.T) {
	t.Parallel()
	nova, in := newFakeNova("tiny")
	nova.server.Tags = nil
	o, err := (&MachineDriver{Instances: madeOf{}}).Find(t.Context(), Session{Cloud: nova}, "s")
	if err != nil || o.State != ObjectReady || o.Raw == nil {
		t.Fatalf("it is %+v: %v", o, err)
	}
	nova.settle(t, in)
	want := slices.Sorted(slices.Values([]string{"tag " + in.Member.ID.String(), "tag " + markTag}))
	if !slices.Equal(nova.calls, want) {
		t.Errorf("it calls %q, want %q", nova.calls, want)
	}
	_, err = (&MachineDriver{}).Find(t.Context(), Session{Cloud: nova}, "x")
	if apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("another one: %v", err)
	}
	nova.cells = apperr.New(apperr.BadGateway, "a cell is down")
	if o, err := (&MachineDriver{}).Find(t.Context(), Session{Cloud: nova}, "x"); err != nil || o.Raw != nil {
		t.Errorf("another one, while a cell is down: %+v, %v", o, err)
	}
	nova.server.Partial, nova.server.Status = true, "UNKNOWN"
	if o, err := (&MachineDriver{}).Find(t.Context(), Session{Cloud: nova}, "s"); err != nil || o.Raw != nil {
		t.Errorf("of a cell that is down: %+v, %v", o, err)
	}
}

// withVolumes has managed volumes in the neighborhood of a server, by their names.
func withVolumes(in *Desired, volumes map[string]domain.Volume) {
	var all []domain.Managed
	objects := map[uuid.UUID]Object{}
	for name, v := range volumes {
		member := domain.Member{ID: uuid.New()}
		all = append(all, domain.Managed{Kind: domain.KindVolume, Name: name, Members: []domain.Member{member}})
		objects[member.ID] = volumeObject(v)
	}
	in.Inventory = NewInventory(all, objects)
}

// TestFreeVolumes: a new server gets its volumes in its create call. It waits while they are another server's, unless
// they can have several. One that replaces another one waits for it in any case.
func TestFreeVolumes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		volume domain.Volume
		want   string // what it waits for
	}{
		"multiattach, replacing": {
			domain.Volume{Status: "in-use", IsMultiattach: true, Servers: []string{"other", "old"}},
			"attached to server other, old",
		},
		"available":   {domain.Volume{Status: "available"}, ""},
		"multiattach": {domain.Volume{Status: "in-use", IsMultiattach: true, Servers: []string{"other"}}, ""},
		"in use":      {domain.Volume{Status: "in-use", Servers: []string{"other"}}, "attached to server other"},
		"detaching":   {domain.Volume{Status: "detaching", Servers: []string{"other"}}, "attached to server other"},
		"reserved":    {domain.Volume{Status: "reserved"}, "is reserved"},
	} {
		_, in := newFakeNova("tiny")
		in.Resource.Kind = domain.KindMachine
		in.Resource.Members = []domain.Member{in.Member, {ID: uuid.New(), ObjectID: "old"}}
		spec := domain.MachineSpec{Volumes: []string{"data"}}
		tc.volume.ID = "v"
		withVolumes(&in, map[string]domain.Volume{"data": tc.volume})
		got, err := freeVolumes(in, spec)
		want := []domain.ServerVolume{{ID: "v", IsMultiattach: tc.volume.IsMultiattach}}
		if tc.want == "" && (err != nil || !slices.Equal(got, want)) {
			t.Errorf("%s: it gets %+v: %v", name, got, err)
		}
		wait, isWait := errors.AsType[WaitError](err)
		if tc.want != "" && (!isWait || !strings.Contains(wait.Message, tc.want)) {
			t.Errorf("%s: it waits for %v, want %s", name, err, tc.want)
		}
	}
	_, in := newFakeNova("tiny")
	unknown := domain.MachineSpec{Volumes: []string{"x"}}
	if _, err := freeVolumes(in, unknown); err == nil {
		t.Error("a volume that no list shows is free")
	}
}

// placed has one order, or none.
type placed struct {
	orders.Store

	id uuid.UUID
}

func (p placed) Get(_ context.Context, _ string, id uuid.UUID) (domain.Order, error) {
	if id != p.id {
		return domain.Order{}, apperr.New(apperr.NotFound, "no order %s", id)
	}
	return domain.Order{ID: id, Status: domain.OrderRunning}, nil
}

// TestPlacedOrder: a server whose order is placed is that of its order: nothing is looked up for it again, and it waits
// for no volume, whatever is stored of its member. One that may have been requested, and was not, is.
func TestPlacedOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		isRequested, isPlaced bool
		status                domain.OrderStatus
	}{
		"new": {}, "placed": {true, true, domain.OrderRunning}, "not placed": {isRequested: true},
		"placed, which is not stored": {false, true, domain.OrderRunning},
	} {
		nova, in := newFakeNova("tiny")
		in.Member.IsRequested = tc.isRequested
		id := uuid.NewSHA1(in.Member.ID, []byte("order"))
		store := placed{}
		if tc.isPlaced {
			store.id = id
		}
		d := &MachineDriver{Orders: orders.Engine{Orders: store}}
		spec := read[domain.MachineSpec](in.Spec)
		if tc.isPlaced {
			spec.Volumes, spec.Flavor = []string{"of another server"}, "of another revision"
		}
		order, err := d.order(t.Context(), Session{Cloud: nova}, in, spec)
		if err != nil || order.ID != id || order.Status != tc.status {
			t.Errorf("%s: it is %+v: %v", name, order, err)
		}
	}
}

// TestSwappedVolumes: a server gives its volumes away before it waits for those of others.
func TestSwappedVolumes(t *testing.T) {
	t.Parallel()
	nova, in := newFakeNova("tiny")
	in.Made.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "networks": ["private"], "volumes": ["a"]}`)
	in.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "networks": ["private"], "volumes": ["b"]}`)
	nova.server.VolumeIDs = []string{"va"}
	for status, want := range map[string][]string{"in-use": {"detach va"}, "available": {"detach va", "attach vb"}} {
		nova.calls = nil
		withVolumes(&in, map[string]domain.Volume{
			"a": {ID: "va", Status: "in-use", Servers: []string{"s"}}, "b": {ID: "vb", Status: status},
		})
		o, driver := machineObject(nova.server), &MachineDriver{}
		err := driver.Update(t.Context(), Session{Cloud: nova}, in, o, driver.Differences(in, o))
		_, isWait := errors.AsType[WaitError](err)
		if isWait != (status == "in-use") || !slices.Equal(nova.calls, want) {
			t.Errorf("%s: it calls %q, and waits: %v", status, nova.calls, err)
		}
	}
}

// TestDeletedVolume: a server whose declared volume others have deleted is not as declared, and waits for the volume.
func TestDeletedVolume(t *testing.T) {
	t.Parallel()
	nova, in := newFakeNova("tiny")
	in.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "networks": ["private"], "volumes": ["a"]}`)
	o, driver := machineObject(nova.server), &MachineDriver{}
	left := driver.Differences(in, o)
	if len(left) != 1 || left[0].Field != "volumes.a" || left[0].Declared != "a" {
		t.Fatalf("it differs by %+v", left)
	}
	err := driver.Update(t.Context(), Session{Cloud: nova}, in, o, left)
	if _, isWait := errors.AsType[WaitError](err); !isWait || len(nova.calls) > 0 {
		t.Errorf("it calls %q, and waits: %v", nova.calls, err)
	}
}

// TestAttachingVolume: a volume that Nova has begun to attach is not there yet. Those of a shelved server are its own.
func TestAttachingVolume(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		server, volume string
		servers        []string
		isThere        bool
	}{
		{"ACTIVE", "reserved", nil, false},
		{"ACTIVE", "attaching", nil, false},
		{"ACTIVE", "in-use", []string{"s"}, true},
		{"ACTIVE", "attaching", []string{"s"}, true}, // to another one, too
		{"SHELVED_OFFLOADED", "reserved", nil, true},
	} {
		nova, in := newFakeNova("tiny")
		in.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "networks": ["private"], "volumes": ["a"]}`)
		nova.server.Status, nova.server.VolumeIDs = tc.server, []string{"va"}
		withVolumes(&in, map[string]domain.Volume{"a": {ID: "va", Status: tc.volume, Servers: tc.servers}})
		left := (&MachineDriver{}).Differences(in, machineObject(nova.server))
		if (len(left) == 0) != tc.isThere {
			t.Errorf("%+v: it differs by %+v", tc, left)
		}
	}
}

// TestFailedCallIsNamed: an error says which of the calls of a change has failed, and has its code.
func TestFailedCallIsNamed(t *testing.T) {
	t.Parallel()
	nova, in := newFakeNova("tiny")
	nova.tagErr = apperr.New(apperr.Unavailable, "nova is unavailable")
	in.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "networks": ["private"], "tags": ["a"]}`)
	o, driver := machineObject(nova.server), &MachineDriver{}
	err := driver.Update(t.Context(), Session{Cloud: nova}, in, o, driver.Differences(in, o))
	if want := "the tag a was not added: nova is unavailable"; apperr.CodeOf(err) != apperr.Unavailable ||
		apperr.As(err).Message != want {
		t.Errorf("it fails with %v, want %s", err, want)
	}
}

// TestCheckOfServer: what a server names is looked up for the user who makes it, before another one is deleted for it.
func TestCheckOfServer(t *testing.T) {
	t.Parallel()
	const rest = `"image": "cirros", "networks": ["private"]`
	for spec, field := range map[string]string{
		`{"flavor": "tiny", "key_name": "mine", ` + rest + `}`:          "",
		`{"flavor": "gone", ` + rest + `}`:                              "spec.flavor",
		`{"flavor": "tiny", "image": "gone", "networks": ["private"]}`:  "spec.image",
		`{"flavor": "tiny", "image": "cirros", "networks": ["gone"]}`:   "spec.networks[0]",
		`{"flavor": "tiny", "security_groups": ["gone"], ` + rest + `}`: "spec.security_groups[0]",
		`{"flavor": "tiny", "key_name": "theirs", ` + rest + `}`:        "spec.key_name",
		`{"flavor": "tiny", "configmaps": ["large"], ` + rest + `}`:     "spec.configmaps",
	} {
		nova, in := newFakeNova("tiny")
		in.Spec = []byte(spec)
		large := domain.ConfigmapSpec{Data: map[string]string{"a": strings.Repeat("x", domain.MaxUserData)}}
		in.Inventory = NewInventory([]domain.Managed{{
			Kind: domain.KindConfigmap, Name: "large", Spec: asJSON(t, large),
		}}, nil)
		err := (&MachineDriver{}).Check(t.Context(), Session{Cloud: nova}, in)
		if field == "" && err != nil || field != "" && (err == nil || apperr.As(err).Fields[0].Field != field) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	for zone, isFound := range map[string]bool{"": true, "nova": true, "nova:host": true, "down": false, "gone": false} {
		nova, in := newFakeNova("tiny")
		in.Resource.Schedule.Zone = zone
		err := (&MachineDriver{}).Check(t.Context(), Session{Cloud: nova}, in)
		if isFound != (err == nil) || err != nil && apperr.As(err).Fields[0].Field != "schedule.zone" {
			t.Errorf("the zone %q: %v", zone, err)
		}
	}
}

// TestVolumesOfReplacement: a server is not deleted while the volumes of what replaces it stay at others. It may have
// them itself, and others may lose them.
func TestVolumesOfReplacement(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		volume domain.Volume
		waits  bool
	}{
		"no one has it":                {domain.Volume{Status: "available"}, false},
		"the replaced one has it":      {domain.Volume{Status: "in-use", Servers: []string{"s"}}, false},
		"an unmanaged one has it":      {domain.Volume{Status: "in-use", Servers: []string{"foreign"}}, true},
		"another one is declared with": {domain.Volume{Status: "in-use", Servers: []string{"keeper"}}, true},
		"another one loses it":         {domain.Volume{Status: "in-use", Servers: []string{"loser"}}, false},
		"another one is deleted":       {domain.Volume{Status: "in-use", Servers: []string{"deleted"}}, false},
		"many may have it":             {domain.Volume{Status: "in-use", Servers: []string{"a"}, IsMultiattach: true}, false},
		"it is moved":                  {domain.Volume{Status: "detaching", Servers: []string{"s"}}, true},
		"it is broken":                 {domain.Volume{Status: "error"}, true},
	} {
		nova, in := newFakeNova("tiny")
		in.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "networks": ["private"], "volumes": ["data"]}`)
		id := uuid.New()
		all := []domain.Managed{{Kind: domain.KindVolume, Name: "data", Members: []domain.Member{{ID: id}}}}
		for name, spec := range map[string]string{
			"keeper": `{"volumes": ["data"]}`, "loser": `{}`, "deleted": `{"volumes": ["data"]}`,
		} {
			m := domain.Managed{
				Kind: domain.KindMachine, Name: name, Spec: []byte(spec), Members: []domain.Member{{ObjectID: name}},
			}
			if name == "deleted" {
				m.Request = domain.ManagedDelete
			}
			all = append(all, m)
		}
		in.Inventory = NewInventory(all, map[uuid.UUID]Object{id: {ID: "v", State: ObjectReady, Raw: row.volume}})
		err := (&MachineDriver{}).Check(t.Context(), Session{Cloud: nova}, in)
		if _, isWait := errors.AsType[WaitError](err); isWait != row.waits || err != nil && !isWait {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBootVolume: another volume to boot from, and another image on one, take another server. The same image in other
// words does not.
func TestBootVolume(t *testing.T) {
	t.Parallel()
	const boot = `"boot_volume": {"size_gb": 1}, "image": `
	for name, tc := range map[string]struct {
		made, declared string // fields
		madeOf         string // the image of the stored order
		differs        []string
	}{
		"same":          {boot + `"cirros"`, boot + `"cirros"`, imageOne, nil},
		"larger":        {boot + `"cirros"`, `"boot_volume": {"size_gb": 2}, "image": "cirros"`, "", []string{"boot_volume"}},
		"no more":       {boot + `"cirros"`, `"image": "cirros"`, "", []string{"boot_volume"}},
		"other image":   {boot + `"cirros"`, boot + `"` + imageTwo + `"`, imageOne, []string{"image"}},
		"absent image":  {boot + `"cirros"`, boot + `"absent"`, imageOne, []string{"image"}},
		"image by id":   {boot + `"cirros"`, boot + `"` + imageOne + `"`, "", nil},
		"image by name": {boot + `"` + imageOne + `"`, boot + `"cirros"`, "", nil},
		"as it was":     {boot + `"then"`, boot + `"cirros"`, imageOne, nil},
	} {
		for update, way := range map[string]Way{domain.UpdateReplace: Replace, domain.UpdateInPlace: Refused} {
			base := `{"flavor": "tiny", "update": "` + update + `", `
			in, o := redeclared(base+tc.made+"}", base+tc.declared+"}")
			server, _ := o.Raw.(domain.Server)
			server.Image, server.MadeOf = nil, &domain.LaunchSpec{ImageID: tc.madeOf}
			o.Raw = server
			var got []string
			for _, one := range matchedInPass(t, sameCloud{}, in, o).members[0].differences {
				if got = append(got, one.Field); one.Way != way {
					t.Errorf("%s: %s is %s", name, one.Field, one.Way)
				}
			}
			if !slices.Equal(got, tc.differs) {
				t.Errorf("%s, %s: it differs in %q, want %q", name, update, got, tc.differs)
			}
		}
	}
}
