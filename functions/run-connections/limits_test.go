package runconnections

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// limit gives a stored connection limits.
func (w *world) limit(t *testing.T, c domain.Connection, limits domain.ConnectionLimits) {
	t.Helper()
	text, err := json.Marshal(limits)
	if err != nil {
		t.Fatal(err)
	}
	w.exec(t, "update connections set limits = $2 where id = $1", c.ID, string(text))
}

// TestLimitsOfOrders: resolved names are checked against the connection's current limits before Nova is called.
func TestLimitsOfOrders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := testkit.Sandbox(t)
	none, other := w.trust(t), uuid.NewString()
	p := w.function(t, nil)
	for _, tc := range []struct {
		limits domain.ConnectionLimits
		change func(*domain.Order, *domain.DelegatedOrder)
		want   string
	}{
		{
			domain.ConnectionLimits{Images: []string{other}},
			nil,
			fmt.Sprintf("image: the connection does not allow the image %q, only %s", f.Image, other),
		},
		{
			domain.ConnectionLimits{Networks: []string{other}},
			nil,
			fmt.Sprintf("networks[0]: the connection does not allow the network %q, only %s", f.Network, other),
		},
		{domain.ConnectionLimits{Flavors: []string{"none"}}, nil, `flavor: the connection does not allow the flavor`},
		{
			domain.ConnectionLimits{Regions: []string{"nowhere"}},
			nil,
			`connection_id: the connection does not allow the region`,
		},
		{
			domain.ConnectionLimits{Networks: []string{other}},
			func(_ *domain.Order, d *domain.DelegatedOrder) { d.Servers[0].Networks = nil }, "networks: ",
		},
	} {
		placed := w.place(t, none, 1, tc.change) // before the limits, which hold when an order is stored, too
		w.limit(t, none, tc.limits)
		order := w.finish(t, p, placed.ID)
		w.limit(t, none, domain.ConnectionLimits{})
		i := order.Instances[0]
		if order.Status != domain.OrderFailed || i.Problem == nil || len(i.Problem.Detail) < len(tc.want) ||
			i.Problem.Detail[:len(tc.want)] != tc.want {
			t.Errorf("%+v: the order is %s: %+v, want %s", tc.limits, order.Status, i.Problem, tc.want)
		}
	}
	if servers := w.Servers(t); len(servers) != 0 {
		t.Errorf("the project has %+v", servers)
	}
}

// TestResourcesAreRead through a connection is stored with the requested check, as far as the limits allow it.
func TestResourcesAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := testkit.Sandbox(t)
	c := w.trust(t)
	start := w.connect(t, func(c *domain.Connection) {
		c.Kind, c.Actions = domain.TrustConnection, []domain.Permission{domain.MayStart}
	})
	shared := w.SharedNetwork(t, "a\x00b")
	w.limit(t, c, domain.ConnectionLimits{Networks: []string{f.NetworkID, shared}, Flavors: []string{f.FlavorID}})
	p := w.function(t, nil)
	store := postgres.Connections{DB: w.db}
	var last time.Time
	for range 2 {
		if _, err := store.RequestCheck(t.Context(), w.ID, c.ID); err != nil {
			t.Fatal(err)
		}
		var got domain.AvailableResources
		ticks(t, p, "it is read", func() bool {
			var found bool
			var err error
			got, _, found, err = store.Resources(t.Context(), w.ID, c.ID)
			return err == nil && found && got.AsOf.After(last)
		})
		last = got.AsOf
		hasImage := slices.ContainsFunc(got.Images, func(i domain.Image) bool { return i.Name == f.Image })
		isCleaned := slices.ContainsFunc(got.Networks, func(n domain.Network) bool {
			return n.ID == shared && n.Name == "a\uFFFDb"
		})
		if !hasImage || len(got.Networks) != 2 || !isCleaned || len(got.Flavors) != 1 ||
			got.Flavors[0].ID != f.FlavorID ||
			got.Quota == nil || got.Quota.Instances.Max == 0 || len(got.Problems) != 0 || len(got.Truncated) != 0 {
			t.Errorf("got %+v", got)
		}
	}
	if n := testkit.Scalar[int](t, testkit.Pool(t, w.database),
		"select jsonb_array_length(flavors) from connections where id = $1", c.ID); n < 2 {
		t.Errorf("%d flavors are known by which orders are sized", n)
	}
	if _, _, found, err := store.Resources(t.Context(), w.ID, start.ID); found || err != nil {
		t.Errorf("through a connection that orders nothing: %t %v", found, err)
	}
}

// TestLimitsOfDeployments: no server is rebuilt with an image that the limits do not allow, be it the requested image
// or the server's own.
func TestLimitsOfDeployments(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ wanted, has string }{{"i2", "i1"}, {"", "i2"}} {
		// it rebuilds nothing
		nova := &failing{server: domain.Server{ID: "s", Status: "ACTIVE", Image: &domain.ImageRef{ID: tc.has}}}
		action := actions.Action{
			ActionRequest: domain.ActionRequest{Action: domain.Deploy}, ServerID: "s", Instance: domain.Instance{
				ID:       uuid.New(),
				ServerID: "s",
			},
			Limits: domain.ConnectionLimits{Images: []string{"i1"}}, Deployment: actions.Deployment{ImageID: tc.wanted},
			Follow: &actions.Follow{Now: time.Now()},
		}
		_, err := actions.Engine{}.Step(t.Context(), nova, action)
		if apperr.CodeOf(err) != apperr.Forbidden {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}
