package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestNodes takes a host into the pool and out of it.
func TestNodes(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	db := open(t, database)
	nodes, leases, isolations := postgres.Nodes{DB: db}, postgres.Leases{DB: db}, postgres.Isolations{DB: db}
	joined, err := nodes.Join(ctx, domain.Node{Name: "compute-1", Zone: "nova", IsUp: true, RequestedBy: "admin"})
	if err != nil || joined.Pool != domain.NodeJoining || joined.Traits == nil || joined.RequestedBy != "admin" {
		t.Fatalf("joined is %+v: %v", joined, err)
	}
	if _, err := leases.Create(ctx, newLease(time.Hour, 1)); apperr.CodeOf(err) != apperr.Unprocessable {
		t.Errorf("a host that is joining: %v", err)
	}
	if ok, err := nodes.SetPool(ctx, "compute-1", domain.NodeLeaving, domain.NodeReservable, ""); ok || err != nil {
		t.Errorf("from a state that it is not in: %t %v", ok, err)
	}
	if ok, err := nodes.SetPool(ctx, "compute-1", domain.NodeJoining, domain.NodeReservable, ""); !ok || err != nil {
		t.Errorf("reservable: %t %v", ok, err)
	}
	err = nodes.Seen(ctx, []domain.ComputeHost{
		{
			Name: "compute-1", Zone: "west", IsUp: true, ProviderID: "x", VCPUs: 8, RAMMB: 16384, DiskGB: 100,
			Traits: []string{"A", "B"}, Attributes: map[string]string{"cpu_info:arch": "x86_64"},
		},
		{Name: "compute-2", IsUp: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := nodes.Pool(ctx)
	if err != nil || len(list) != 1 || list[0].Zone != "west" || list[0].VCPUs != 8 || !slices.Equal(list[0].Traits,
		[]string{"A", "B"}) || list[0].Attributes["cpu_info:arch"] != "x86_64" || list[0].SeenAt.IsZero() {
		t.Errorf("seen is %+v: %v", list, err)
	}
	lease := create(t, leases, newLease(time.Hour, 1))
	if _, err := nodes.Leave(ctx, "compute-1", "admin"); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("a host with a reservation: %v", err)
	}
	if _, err := nodes.Leave(ctx, "compute-2", "admin"); apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("an ordinary host: %v", err)
	}
	if _, err := leases.End(ctx, "p1", lease.ID, "", nil); err != nil {
		t.Fatal(err)
	}
	if left, err := nodes.Leave(ctx, "compute-1", "boss"); err != nil || left.Pool != domain.NodeLeaving {
		t.Errorf("left is %+v: %v", left, err)
	}
	if ok, err := nodes.Left(ctx, "compute-1"); !ok || err != nil {
		t.Errorf("it is not deleted: %v", err)
	}
	if got, err := isolations.Get(ctx, ""); err != nil || got != (domain.Isolation{}) {
		t.Errorf("never tested: %+v %v", got, err)
	}
	for _, result := range []string{domain.IsolationProven, domain.IsolationUnproven} {
		if err := isolations.Set(ctx, "", result, "why"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := isolations.Get(ctx, ""); err != nil || got.Result != domain.IsolationUnproven ||
		got.TestedAt.IsZero() {
		t.Errorf("tested: %+v %v", got, err)
	}
}
