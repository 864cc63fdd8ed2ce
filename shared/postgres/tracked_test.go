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
		"p1": {"s0": {ID: o.Instances[0].ID, ServerID: "s0", State: domain.InstanceActive, Origin: domain.OriginLaunched}}, "p2": {},
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

// TestNamed finds instances by their own ids and by their servers', in their project alone.
func TestNamed(t *testing.T) {
	t.Parallel()
	store, o := orders(t), newOrder(3)
	place(t, store, o, long)
	server := uuid.NewString()
	if err := change(t, store, []domain.Instance{with(o.Instances[0], server, domain.InstanceActive)}); err != nil {
		t.Fatal(err)
	}
	made := domain.Tracked{ID: o.Instances[0].ID, ServerID: server, State: domain.InstanceActive, Origin: domain.OriginLaunched}
	ordered := domain.Tracked{ID: o.Instances[1].ID, State: domain.InstanceRequested, Origin: domain.OriginLaunched}
	for name, tc := range map[string]struct {
		project string
		ids     []string
		want    map[string]domain.Tracked
	}{
		"by its server": {"p1", []string{server, uuid.NewString()}, map[string]domain.Tracked{server: made, made.ID.String(): made}},
		"by its own":    {"p1", []string{made.ID.String()}, map[string]domain.Tracked{server: made, made.ID.String(): made}},
		"no server yet": {"p1", []string{ordered.ID.String()}, map[string]domain.Tracked{ordered.ID.String(): ordered}},
		"another's":     {"p2", []string{server, made.ID.String()}, map[string]domain.Tracked{}},
		"none":          {"p1", nil, map[string]domain.Tracked{}},
	} {
		got, err := postgres.Instances(store).Named(t.Context(), tc.project, tc.ids)
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
}
