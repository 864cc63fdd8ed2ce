package postgres_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

func TestTracked(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(2)
	place(t, store, o, long)
	if err := change(t, store, []domain.Instance{with(o.Instances[0], "s0", domain.InstanceActive)}); err != nil {
		t.Fatal(err)
	}
	for project, want := range map[string]map[string]domain.Tracked{
		"p1": {"s0": {
			ID: o.Instances[0].ID, ServerID: "s0", State: domain.InstanceActive,
			Origin: domain.OriginLaunched,
		}}, "p2": {},
	} {
		got, err := postgres.Instances(store).Tracked(t.Context(), project, []string{"s0", "s1", ""})
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", project, err, diff)
		}
	}
	if got, err := postgres.Instances(store).Tracked(t.Context(), "p1", nil); err != nil || len(got) != 0 {
		t.Errorf("none asked for: %v %v", got, err)
	}
}

// TestFind finds instances by their own ids and by their servers', in their project alone, in the order of ids.
func TestFind(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(3)
	place(t, store, o, long)
	server := uuid.NewString()
	if err := change(t, store, []domain.Instance{with(o.Instances[0], server, domain.InstanceActive)}); err != nil {
		t.Fatal(err)
	}
	made, ordered := o.Instances[0].ID, o.Instances[1].ID
	for name, tc := range map[string]struct {
		project string
		ids     []string
		want    []uuid.UUID
	}{
		"by its server": {"p1", []string{uuid.NewString(), server}, []uuid.UUID{uuid.Nil, made}},
		"by its own":    {"p1", []string{made.String()}, []uuid.UUID{made}},
		"no server yet": {"p1", []string{ordered.String()}, []uuid.UUID{ordered}},
		"another's":     {"p2", []string{server, made.String()}, []uuid.UUID{uuid.Nil, uuid.Nil}},
		"none":          {"p1", nil, []uuid.UUID{}},
	} {
		found, err := postgres.Instances(store).Find(t.Context(), domain.Filter{ProjectID: tc.project}, tc.ids)
		got := make([]uuid.UUID, len(found))
		for n, i := range found {
			if got[n] = i.ID; i.ID == made && (i.ServerID != server || i.State != domain.InstanceActive ||
				i.Origin != domain.OriginLaunched) {
				t.Errorf("%s: got %+v", name, i)
			}
		}
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}
