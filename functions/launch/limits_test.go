package launch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	cirros    = "6073d69d-80b1-4ac2-bd3c-3fc7777e5422"
	debian    = "7b1c1b1e-7a55-4a6e-8f0c-2d3f7f5e1a10"
	private   = "b4796845-f1bc-47f3-8824-72e723fb3491"
	storage   = "58f9ea1f-a216-47ce-84fe-9184e7cff838"
	community = "0f8fad5b-d9cb-469f-a165-70867728950e"
)

// limited is a connection with limits on images, networks and flavors.
func limited(t *testing.T) delegatedCase {
	t.Helper()
	return delegated(t, func(c *domain.Connection) {
		c.Limits = domain.ConnectionLimits{
			Images: []string{cirros}, Networks: []string{private},
			Flavors: []string{"tiny", "f2"},
		}
		c.ActsAs.Roles = []string{"member"}
	})
}

// storeResources stores what run-connections would have read through the connection.
func (d delegatedCase) storeResources(t *testing.T, change func(*domain.SeenResources)) {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(d.database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	subnets := []domain.Subnet{{ID: "s1", CIDR: "10.0.0.0/24", IPVersion: 4}}
	seen := domain.SeenResources{
		Flavors: d.Flavors,
		Images: []domain.Image{
			{ID: cirros, Name: "cirros", Status: "active", MinDiskGB: 1},
			{ID: debian, Name: "debian", Status: "active", MinDiskGB: 10},
		},
		Networks: []domain.Network{
			{ID: private, Name: "private", Subnets: subnets},
			{ID: storage, Name: "storage", Subnets: subnets},
		},
		Quota: &domain.Quota{
			Instances: domain.QuotaItem{Max: 10, Used: 8}, VCPUs: domain.QuotaItem{Max: -1},
			RAMMB: domain.QuotaItem{Max: -1},
		},
	}
	if change != nil {
		change(&seen)
	}
	err = (postgres.Delegations{DB: db}).RecordResources(t.Context(), d.ProjectID, d.ID, time.Now(), seen)
	if err != nil {
		t.Fatal(err)
	}
}

// TestLaunchByConnectionWithinLimits checks that ids and flavors outside the limits are rejected before anything is
// stored.
func TestLaunchByConnectionWithinLimits(t *testing.T) {
	t.Parallel()
	d := limited(t)
	for _, tc := range []struct {
		changes object
		field   string
		says    string
	}{
		{object{"flavor": "large"}, "flavor", `the flavor \"large\", only tiny, f2`},
		{object{"flavor": "f3"}, "flavor", `the flavor \"large\", only tiny, f2`},
		{object{"image": debian}, "image", fmt.Sprintf(`the image \"%s\", only %s`, debian, cirros)},
		{
			object{"networks": []string{private, storage}},
			"networks[1]",
			fmt.Sprintf(`the network \"%s\", only %s`, storage, private),
		},
		{object{"instances": []object{{}, {"flavor": "large"}}}, "instances[1].flavor", `the flavor \"large\"`},
	} {
		a := d.app.Post(t, "/v1/launch", d.body(t, tc.changes))
		if a.Status != 403 || !testkit.Names(t, a, tc.field) ||
			!strings.Contains(string(a.Body), "the connection does not allow "+tc.says) {
			t.Errorf("%v: got %d %s, want 403 that names %s", tc.changes, a.Status, a.Body, tc.field)
		}
	}
	if n := d.orders(t); n != 0 {
		t.Errorf("%d orders are stored", n)
	}
	for n, changes := range []object{
		{"flavor": "f1", "image": strings.ToUpper(cirros), "networks": []string{private}},
		{"flavor": "small"}, // run-connections resolves names of images and networks
		{"flavor": nil, "min": object{"ram_mb": 600}, "count": 1}, // the smallest that is allowed
	} {
		if a := d.app.Post(t, "/v1/launch", d.body(t, changes)); a.Status != 202 {
			t.Errorf("%d: got %d %s", n, a.Status, a.Body)
		}
	}
	if a := d.app.Post(t, "/v1/launch", d.body(t, object{"flavor": nil, "min": object{"vcpus": 4}})); a.Status != 422 {
		t.Errorf("the only flavor that fits is not allowed: got %d %s", a.Status, a.Body)
	}
}

// TestDryRunByConnectionWithResources compares requests with the stored resources of the connection.
func TestDryRunByConnectionWithResources(t *testing.T) {
	t.Parallel()
	d := limited(t)
	d.storeResources(t, nil)
	run := func(changes object) (got launchReport, text string) {
		t.Helper()
		in := object{"image": "cirros", "networks": []string{"private"}}
		maps.Copy(in, changes)
		a := d.app.Post(t, "/v1/launch?dry_run=true", d.body(t, in))
		if a.Status != 200 {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		a.JSON(t, &got)
		var all strings.Builder
		for _, p := range got.Problems {
			fmt.Fprintf(&all, "%s %s;", p.Field, p.Code)
		}
		for _, u := range got.Unchecked {
			fmt.Fprintf(&all, "?%s;", u.Field)
		}
		return got, all.String()
	}
	got, text := run(nil)
	if !got.OK || text != "" || got.AsOf == nil || time.Since(*got.AsOf) > time.Minute ||
		got.Resolved[0].ImageID != cirros || !slices.Equal(got.Resolved[0].NetworkIDs, []string{private}) {
		t.Errorf("got %+v %s", got, text)
	}
	for _, tc := range []struct {
		changes object
		want    string
	}{
		{object{"networks": nil}, ""}, // there is one that is allowed
		{object{"count": 3}, "count quota_exceeded;"},
		{object{"image": "debian"}, "image forbidden;"},
		{object{"image": "nope"}, "image forbidden;"}, // the answer does not reveal which images exist
		{object{"image": debian}, "image forbidden;"},
		{object{"networks": []string{"private", "storage"}}, "networks[1] forbidden;"},
		{object{"networks": []string{storage}}, "networks[0] forbidden;"},
		{object{"flavor": "large"}, "flavor forbidden;"},
		{object{"key_name": "k"}, "?key_name;"},
	} {
		if got, text := run(tc.changes); text != tc.want || got.OK == strings.Contains(tc.want, " ") {
			t.Errorf("%v: got %s %+v, want %s", tc.changes, text, got, tc.want)
		}
	}
	exec(t, d.conn, "update connections set limits = '{}'")
	exec(t, d.conn, "update connection_resources set as_of = as_of - interval '1 hour'")
	for _, tc := range []struct {
		changes object
		want    string
	}{
		{object{"image": "nope"}, "image invalid;?connection_id;"},
		{object{"image": community}, "?connection_id;?image;"},
		{object{"image": "debian"}, "flavor invalid;?connection_id;"},
		{object{"networks": nil}, "networks invalid;?connection_id;"},
	} {
		if got, text := run(tc.changes); text != tc.want {
			t.Errorf("without limits, %v: got %s %+v, want %s", tc.changes, text, got, tc.want)
		}
	}
	d.storeResources(t, func(s *domain.SeenResources) {
		s.Images, s.Quota, s.Networks, s.Truncated = nil, nil, s.Networks[:1], []string{domain.SeenNetworks}
		s.Problems = map[string]domain.Problem{
			domain.SeenImages: {Code: "unavailable", Detail: "glance cannot be reached"},
		}
	})
	got, text = run(object{"networks": []string{"storage"}})
	if !got.OK || text != "?image;?networks[0];?count;" ||
		!strings.Contains(got.Unchecked[0].Detail, "glance cannot be reached") {
		t.Errorf("of what could not be read: %s %+v", text, got)
	}
}
