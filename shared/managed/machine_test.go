package managed

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeNova has one server. It takes a resize only of a server that is ACTIVE, as Nova does.
type fakeNova struct {
	Cloud

	server domain.Server
	cells  error // why a cell is down
	calls  []string
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

func (f *fakeNova) CellsUp(context.Context, string) error { return f.cells }

// newFakeNova has the ready server of a member, which is wanted with the flavor.
func newFakeNova(flavor string) (*fakeNova, Wanted) {
	id := uuid.New()
	in := Wanted{
		Resource: domain.Managed{Kind: domain.KindMachine, Name: "web", Revision: 1}, Name: "web",
		Member: domain.Member{ID: id, Revision: 1, ObjectID: "s", Status: domain.MemberUpdating},
		Spec:   []byte(`{"flavor": "` + flavor + `", "image": "cirros", "networks": ["private"]}`),
		Around: NewAround(nil, nil),
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
func (f *fakeNova) settle(t *testing.T, in Wanted) {
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
	o, err := (&MachineDriver{}).Find(t.Context(), Session{Cloud: nova}, "s")
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
