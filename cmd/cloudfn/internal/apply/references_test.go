package apply

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
)

// TestReferences refuses what a document newly names and nothing has; what stays, and what cannot be known, passes.
func TestReferences(t *testing.T) {
	t.Parallel()
	const community = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01"
	a, _, _ := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
		switch query := r.URL.Query(); query.Get("kind") + query.Get("kinds") {
		case "Configmap":
			fmt.Fprint(w, `{"managed": [{"kind": "Configmap", "name": "stored"}], "next": null}`)
		case "Image", "Volume":
			fmt.Fprint(w, `{"managed": [], "next": null}`)
		case "flavors":
			fmt.Fprint(w, `{"flavors": [{"id": "1", "name": "m1.tiny"}]}`)
		case "images":
			fmt.Fprint(w, `{"images": [{"id": "2", "name": "cirros"}]}`)
		default:
			fmt.Fprint(w, `{"errors": {"networks": {"detail": "neutron is not available"}}}`)
		}
	})
	refs := references{App: a, known: map[string][]string{}, all: []documents.Document{
		{Kind: "Configmap", Name: "beside"}, {Kind: "Image", Name: "made"},
	}}
	for name, tc := range map[string]struct {
		field    string
		from, to any
		want     string
	}{
		"a flavor":             {"spec.flavor", nil, "m1.tiny", ""},
		"its id":               {"spec.flavor", nil, "1", ""},
		"a misspelled one":     {"spec.flavor", nil, "m1.tinny", `no flavor "m1.tinny"; did you mean "m1.tiny"?`},
		"one that was there":   {"spec.flavor", "m9", "m9", ""},
		"an image":             {"spec.image", nil, "cirros", ""},
		"a declared image":     {"spec.image", nil, "made", ""},
		"an id":                {"spec.image", nil, community, ""},
		"no image":             {"spec.image", nil, "debian", `there is no image "debian"`},
		"files":                {"spec.configmaps", nil, []any{"stored", "beside"}, ""},
		"no files":             {"spec.configmaps", []any{"lost"}, []any{"lost", "nope"}, `no Configmap "nope"`},
		"no volume":            {"spec.volumes", nil, []any{"data"}, `there is no managed volume "data"`},
		"an unknown network":   {"spec.networks", nil, []any{"private"}, ""},
		"what names nothing":   {"spec.tags", nil, []any{"x"}, ""},
		"what is taken away":   {"spec.configmaps", []any{"lost"}, nil, ""},
		"an empty key pair":    {"spec.key_name", "k", "", ""},
		"a text that is a map": {"spec.flavor", nil, map[string]any{}, ""},
	} {
		change := managed.Change{Fields: []managed.Field{{Field: tc.field, From: tc.from, To: tc.to}}}
		err := refs.check(t.Context(), documents.Document{Kind: "VirtualMachine"}, change)
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) ||
			a.Code(err) != exit.Usage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	elsewhere := documents.Document{Fields: map[string]any{"schedule": map[string]any{"region": "RegionTwo"}}}
	change := managed.Change{Fields: []managed.Field{{Field: "spec.flavor", To: "m9"}}}
	if err := refs.check(t.Context(), elsewhere, change); err != nil {
		t.Errorf("in another region: %v", err)
	}
}
