package managed

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeNames has a flavor tiny (id 1), a network back (id n), a security group web (id g) and an image cirros.
type fakeNames struct {
	Cloud

	err error
}

func (f fakeNames) Flavors(context.Context) ([]domain.Flavor, error) {
	return shown(f, domain.Flavor{ID: "1", Name: "tiny"})
}

func (f fakeNames) Networks(context.Context) ([]domain.Network, error) {
	return shown(f, domain.Network{ID: "n", Name: "back"})
}

func (f fakeNames) SecurityGroups(context.Context) ([]domain.SecurityGroup, error) {
	return shown(f, domain.SecurityGroup{ID: "g", Name: "web"})
}

// shown is a list with one object, while the cloud is reachable.
func shown[T any](f fakeNames, one T) ([]T, error) {
	if f.err != nil {
		return nil, f.err
	}
	return []T{one}, nil
}

func (f fakeNames) Images(_ context.Context, name string) (found []domain.Image, err error) {
	if name == "cirros" {
		found = []domain.Image{{ID: imageOne, Name: name, Status: "active"}}
	}
	return found, f.err
}

func (f fakeNames) Image(_ context.Context, id string) (domain.Image, error) {
	if id != imageOne || f.err != nil {
		return domain.Image{}, apperr.New(apperr.NotFound, "no image %s", id)
	}
	return domain.Image{ID: imageOne, Name: "cirros", Status: "active"}, nil
}

// TestChanges: a declaration replaces what its driver would replace. The same set in another order, a default that is
// given, and another name of the same object, change nothing.
func TestChanges(t *testing.T) {
	t.Parallel()
	const machine, replace, zero = domain.KindMachine, `"update": "replace", `, `"max_unavailable": 0, "count": 2, `
	deployment, image, balancer := domain.KindDeployment, domain.KindImage, domain.KindBalancer
	for _, tc := range []struct {
		kind           domain.Kind
		same, from, to string
		want           string
	}{
		{machine, replace, `"security_groups": ["a", "b"]`, `"security_groups": ["b", "a"]`, ""},
		{machine, replace, `"security_groups": []`, `"security_groups": ["default"]`, ""},
		{machine, replace, `"security_groups": ["web"]`, `"security_groups": ["g"]`, ""},
		{machine, replace, `"security_groups": ["web"]`, `"security_groups": ["b"]`, "replace security_groups"},
		{machine, replace, `"configmaps": ["a", "b"]`, `"configmaps": ["b", "a"]`, ""},
		{machine, replace, `"networks": ["a", "b"]`, `"networks": ["b", "a"]`, "replace networks"},
		{machine, replace, `"networks": ["n"]`, `"networks": ["back"]`, ""},
		{machine, replace, `"key_name": "a"`, `"key_name": ""`, "replace key_name"},
		{machine, replace, `"flavor": "tiny"`, `"flavor": "1"`, ""},
		{machine, replace, `"flavor": "1"`, `"flavor": "tiny"`, ""},
		{machine, replace, `"flavor": "1"`, `"flavor": "small"`, "replace flavor"},
		{machine, replace, `"image": "cirros"`, `"image": "` + imageOne + `"`, ""},
		{machine, replace, `"image": "` + imageOne + `"`, `"image": "cirros"`, ""},
		{machine, replace, `"image": "` + imageTwo + `"`, `"image": "cirros"`, "replace image"},
		{machine, "", `"image": "cirros"`, `"image": "` + imageTwo + `"`, "in_place image"},
		{machine, "", `"flavor": "tiny"`, `"flavor": "small"`, "in_place flavor"},
		{machine, "", `"key_name": "a"`, `"key_name": "b"`, "refused key_name"},
		{deployment, zero, `"flavor": "tiny"`, `"flavor": "small"`, "replace flavor"},
		{image, "", `"disk_format": "raw"`, `"disk_format": "raw", "container_format": "bare"`, ""},
		{image, "", `"disk_format": "raw"`, `"disk_format": "qcow2"`, "replace disk_format"},
		{image, "", `"content": "YQ=="`, `"content": "Yg=="`, "replace content"},
		{image, "", `"content": "YQ=="`, `"source_url": "https://x"`, "replace source_url"},
		{balancer, "", `"network": "back"`, `"network": "n"`, ""},
		{balancer, "", `"network": "back"`, `"network": "a"`, "replace network"},
		{balancer, `"network": "back", `, `"address": "10.0.0.1"`, `"address": ""`, ""},
		{balancer, `"network": "back", `, `"address": ""`, `"address": "10.0.0.1"`, "replace address"},
		{domain.KindSecret, "", `"content_type": ""`, `"content_type": "text/plain"`, ""},
		{domain.KindSecret, "", `"content_type": ""`, `"content_type": "application/json"`, "replace content_type"},
		{domain.KindVolume, "", `"size_gb": 1`, `"size_gb": 2`, ""},
	} {
		spec := func(field string) domain.Managed {
			return domain.Managed{Kind: tc.kind, Revision: 1, Spec: json.RawMessage("{" + tc.same + field + "}")}
		}
		if got := changesOf(t, fakeNames{}, spec(tc.from), spec(tc.to)); got != tc.want {
			t.Errorf("%s from %s to %s: got %q, want %q", tc.kind, tc.from, tc.to, got, tc.want)
		}
	}
	before := domain.Managed{Kind: machine, Revision: 1, Spec: json.RawMessage(`{"networks": ["back"]}`)}
	after := before
	after.Spec = json.RawMessage(`{"networks": ["n"]}`)
	away := fakeNames{err: apperr.New(apperr.Unavailable, "away")}
	if got := changesOf(t, away, before, after); got != "refused networks" {
		t.Errorf("without the cloud: got %q", got)
	}
	after = before
	after.Schedule.Zone = "other"
	if got := changesOf(t, fakeNames{}, before, after); got != "refused schedule" {
		t.Errorf("another zone: got %q", got)
	}
	after.Schedule, after.Digest = before.Schedule, []byte{1}
	if got := changesOf(t, fakeNames{}, before, after); got != "refused user_data" {
		t.Errorf("another secret: got %q", got)
	}
}

// changesOf are the changes, but for those that every made object lacks: names, marks and listeners.
func changesOf(t *testing.T, cloud Cloud, before, after domain.Managed) string {
	t.Helper()
	var all []string
	for _, d := range (Session{Cloud: cloud}).Changes(t.Context(), before, after) {
		if d.Way != InPlace || slices.Contains([]string{"flavor", "image"}, d.Field) {
			all = append(all, fmt.Sprintf("%s %s", d.Way, d.Field))
		}
	}
	return strings.Join(all, ", ")
}
