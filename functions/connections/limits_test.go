package connections

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLimits are stored, and shown to everybody authorized to act through the connection.
func TestLimits(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	f := testkit.Sandbox(t)
	app = app.As(p.Token(t))
	image, network := uuid.NewString(), uuid.NewString()
	made := create(t, app, asking("trust",
		fmt.Sprintf(`, "usable_by": [%q], "limits": {"images": [%q, %[3]q], "networks": [%[4]q], "flavors": [%[5]q]}`,
			other.UserID, strings.ToUpper(image), image, network, f.FlavorID)))
	for name, client := range map[string]*testkit.Client{
		"its owner":       app,
		"another project": app.As(other.Token(t)),
	} {
		var c Connection
		client.Get(t, "/v1/connections/"+made.ID.String()).JSON(t, &c)
		if !slices.Equal(c.Limits.Images, []string{image}) || !slices.Equal(c.Limits.Networks, []string{network}) ||
			!slices.Equal(c.Limits.Flavors, []string{f.FlavorID}) || c.Limits.Regions != nil {
			t.Errorf("%s is shown %+v", name, c.Limits)
		}
	}
	if c := create(t, app, asking("trust", `, "limits": null`)); !c.Limits.IsZero() {
		t.Errorf("without limits: %+v", c.Limits)
	}
	for _, tc := range []struct{ limits, field, says string }{
		{`{"images": []}`, "limits.images", "1 entries or more"},
		{`{"images": ["cirros"]}`, "limits.images[0]", "UUID"},
		{`{"networks": ["` + network + `", "private"]}`, "limits.networks[1]", "UUID"},
		{`{"networks": ["` + strings.ReplaceAll(network, "-", "") + `"]}`, "limits.networks[0]", "UUID"},
		{`{"flavors": [""]}`, "limits.flavors[0]", "1 characters"},
		{`{"flavors": ["` + f.FlavorID + `", "no-such-flavor"]}`, "limits.flavors[1]", "no-such-flavor"},
		{`{"flavors": ["a\u0000"]}`, "limits.flavors[0]", "control"},
		{`{"regions": ["no-such-region"]}`, "limits.regions", "region"},
		{`{"zones": ["nova"]}`, "limits.zones", "is not a field"},
		{`{"images": ["` + strings.Repeat(image+`", "`, 100) + image + `"]}`, "limits.images", "100 entries"},
	} {
		a := app.Post(t, "/v1/connections", asking("trust", `, "limits": `+tc.limits))
		if a.Status != 400 || !testkit.Names(t, a, tc.field) || !strings.Contains(string(a.Body), tc.says) {
			t.Errorf("%.100s: got %d %s, want 400 that names %s and says %s", tc.limits, a.Status, a.Body, tc.field,
				tc.says)
		}
	}
	if left := p.Trusts(t); len(left) != 2 {
		t.Errorf("rejected requests have made the trusts %v", left)
	}
}

// TestLimitsMustHaveTheRegion of the connection.
func TestLimitsMustHaveTheRegion(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		regions []string
		region  string
		taken   bool
	}{
		{nil, "", true},
		{nil, "west", true},
		{[]string{"west", "east"}, "west", true},
		{[]string{"east"}, "west", false},
		{[]string{"east"}, "", false},
	} {
		w := draft{Connection: domain.Connection{Limits: domain.ConnectionLimits{Regions: tc.regions}}}
		if err := checkLimits(w, tc.region); (err == nil) != tc.taken {
			t.Errorf("%v in %q: %v", tc.regions, tc.region, err)
		}
	}
}
