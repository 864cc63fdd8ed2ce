package domain_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestConnectionSecretIsForOneCloud: sealed for one, it opens for no other, whatever the row says later.
func TestConnectionSecretIsForOneCloud(t *testing.T) {
	t.Parallel()
	here := domain.Connection{ID: uuid.New(), ProjectID: "p1"}
	there, other := here, here
	there.AuthURL, other.ID = "https://elsewhere.example/v3", uuid.New()
	if here.SealedFor() == there.SealedFor() || here.SealedFor() == other.SealedFor() {
		t.Errorf("%q, %q and %q are not three purposes", here.SealedFor(), there.SealedFor(), other.SealedFor())
	}
}

// TestConnectionUsable by the user who delegated it, unless with a token that only reads.
func TestConnectionUsable(t *testing.T) {
	t.Parallel()
	c := domain.Connection{UserID: "u1", ProjectID: "p1"}
	for want, roles := range map[bool][]string{true: {"member"}, false: nil} {
		if got := c.Usable(domain.Identity{UserID: "u1", ProjectID: "p1", WriteRoles: roles}); got != want {
			t.Errorf("with the roles %v: %t", roles, got)
		}
	}
}

// TestConnectionLimits: what is not limited is allowed, ids in capitals too, and a refusal names the value and what is
// allowed.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	none, some := domain.ConnectionLimits{}, domain.ConnectionLimits{
		Images: []string{"6073d69d-80b1-4ac2-bd3c-3fc7777e5422"}, Networks: []string{"n1", "n2"},
		Flavors: []string{"f1", "small"}, Regions: []string{"west"},
	}
	for _, tc := range []struct {
		name    string
		check   func(domain.ConnectionLimits) error
		allowed bool
	}{
		{"an image", func(l domain.ConnectionLimits) error { return l.CheckImage("image", some.Images[0]) }, true},
		{"an image in capitals", func(l domain.ConnectionLimits) error {
			return l.CheckImage("image", strings.ToUpper(some.Images[0]))
		}, true},
		{"another image", func(l domain.ConnectionLimits) error { return l.CheckImage("image", "i2") }, false},
		{"no image", func(l domain.ConnectionLimits) error { return l.CheckImage("image", "") }, false},
		{"a network", func(l domain.ConnectionLimits) error { return l.CheckNetwork("networks[0]", "n2") }, true},
		{
			"another network", func(l domain.ConnectionLimits) error { return l.CheckNetwork("networks[0]", "n3") },
			false,
		},
		{
			"a flavor by id", func(l domain.ConnectionLimits) error { return l.CheckFlavor("flavor", "f1", "tiny") },
			true,
		},
		{
			"a flavor by name", func(l domain.ConnectionLimits) error {
				return l.CheckFlavor("flavor", "f2",
					"small")
			}, true,
		},
		{
			"another flavor", func(l domain.ConnectionLimits) error { return l.CheckFlavor("flavor", "f3", "large") },
			false,
		},
		{"a region", func(l domain.ConnectionLimits) error { return l.CheckRegion("region", "west") }, true},
		{"another region", func(l domain.ConnectionLimits) error { return l.CheckRegion("region", "east") }, false},
		{"a spec", func(l domain.ConnectionLimits) error {
			return l.CheckSpec(domain.LaunchSpec{
				FlavorID: "f1", ImageID: some.Images[0], ImageRef: "i2", NetworkIDs: []string{"n1", "n2"},
			})
		}, true},
		{"a spec whose image is a name", func(l domain.ConnectionLimits) error {
			return l.CheckSpec(domain.LaunchSpec{FlavorID: "f1", ImageRef: "debian"})
		}, true},
		{"a spec of another network", func(l domain.ConnectionLimits) error {
			return l.CheckSpec(domain.LaunchSpec{FlavorID: "f1", NetworkIDs: []string{"n1", "n3"}})
		}, false},
		{
			"a region that is not known", func(l domain.ConnectionLimits) error { return l.CheckRegion("region", "") },
			false,
		},
	} {
		if err := tc.check(none); err != nil {
			t.Errorf("%s without limits: %v", tc.name, err)
		}
		if err := tc.check(some); tc.allowed != (err == nil) || !tc.allowed && apperr.CodeOf(err) != apperr.Forbidden {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	err := apperr.As(some.CheckFlavor("instances[1].flavor", "f3", "large"))
	want := `instances[1].flavor: the connection does not allow the flavor "large", only f1, small`
	if err.Message != want ||
		err.Fields[0].Field != "instances[1].flavor" || !slices.Equal(err.Fields[0].Allowed, some.Flavors) {
		t.Errorf("got %+v", err)
	}
	if !none.IsZero() || some.IsZero() {
		t.Error("IsZero is wrong")
	}
}

// TestSeenIsBounded: however much a cloud shows, what is kept has a bound, and what is allowed comes before what is
// not.
func TestSeenIsBounded(t *testing.T) {
	t.Parallel()
	available := domain.AvailableResources{Flavors: []domain.Flavor{{ID: "f1"}}, Networks: []domain.Network{}}
	for n := range 3 * domain.MaxResources {
		available.Images = append(available.Images, domain.Image{ID: strconv.Itoa(n), Name: strings.Repeat("x", 2000)})
	}
	limited := available
	available.Bound(domain.ConnectionLimits{})
	text, err := json.Marshal(available)
	if err != nil || len(text) > domain.MaxResourceBytes || len(available.Images) == 0 ||
		!slices.Equal(available.Truncated, []string{domain.ResourceImages}) {
		t.Errorf("%d bytes, %d images, %v %v", len(text), len(available.Images), available.Truncated, err)
	}
	last := available.Images
	limited.Bound(domain.ConnectionLimits{Images: []string{strconv.Itoa(3*domain.MaxResources - 1)}})
	if len(limited.Images) != 1 || len(limited.Truncated) != 0 || len(last) == 0 {
		t.Errorf("of one allowed image %d are kept, and %v", len(limited.Images), limited.Truncated)
	}
	for kind, has := range map[string]bool{
		domain.ResourceFlavors: true, domain.ResourceImages: true, domain.ResourceNetworks: true,
		domain.ResourceQuota: false,
	} {
		if limited.Has(kind) != has {
			t.Errorf("%s: %t", kind, !has)
		}
	}
	if allowed := limited.Allowed(domain.ConnectionLimits{Networks: []string{"n1"}}); allowed.Networks == nil ||
		len(allowed.Flavors) != 1 {
		t.Errorf("got %+v", allowed)
	}
}
