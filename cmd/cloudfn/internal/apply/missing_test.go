package apply

import (
	"testing"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
)

// TestMissing refuses what a document names and nothing has, unless it is declared beside it.
func TestMissing(t *testing.T) {
	t.Parallel()
	kind := "Configmap"
	all := []documents.Document{{Kind: kind, Name: "beside"}, {Kind: "Volume", Name: "data"}}
	for want, missing := range map[string][]api.PlanMissing{
		"":                         {{Field: "spec.configmaps[0]", Kind: &kind, Name: "beside"}},
		"spec.configmaps[1]: none": {{Field: "spec.configmaps[1]", Kind: &kind, Name: "data", Detail: "none"}},
		"spec.flavor: no flavor":   {{Field: "spec.flavor", Name: "beside", Detail: "no flavor"}},
	} {
		got := ""
		if err := missingIn(managed.Change{Missing: missing}, all); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
