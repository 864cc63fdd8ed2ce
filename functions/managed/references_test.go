package managed

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDryRunReferences: a dry run lists what a declaration newly names and nothing has. What stays, what is declared
// already and what the cloud has pass. The declaration itself is accepted: all of it may be declared later.
func TestDryRunReferences(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	missing := func(path, spec string) (found []PlanMissing, fields []string) {
		t.Helper()
		m := declared(t, declare(t, f.Client, path+"?dry_run=true", `{"spec": `+spec+`}`), http.StatusOK)
		for _, p := range m.Plan {
			found = append(found, p.Missing...)
		}
		for _, p := range found {
			fields = append(fields, p.Field)
		}
		return found, fields
	}
	network := testkit.Sandbox(t).Network
	wrong := `{"flavor": "m1.tinny", "image": "debiam", "networks": ["` + network + `", "nowhere"], "key_name": "no-key",
		"security_groups": ["default", "no-group"], "volumes": ["data"], "configmaps": ["files", "no-files"]}`
	declared(t, declare(t, f.Client, "/v1/managed/Configmap/files", `{"spec": {"data": {"a": "b"}}}`), http.StatusCreated)
	found, fields := missing(machines+"web", wrong)
	want := []string{
		"spec.configmaps[1]", "spec.flavor", "spec.image", "spec.key_name", "spec.networks[1]",
		"spec.security_groups[1]", "spec.volumes[0]",
	}
	if !slices.Equal(fields, want) {
		t.Fatalf("missing are %+v, want %v", found, want)
	}
	if found[0].Kind != "Configmap" || found[2].Kind != "Image" || found[6].Kind != "Volume" ||
		found[0].Name != "no-files" || !strings.HasSuffix(found[1].Detail, `did you mean "m1.tiny"?`) {
		t.Errorf("missing are %+v", found)
	}
	ids := []string{f.project.MakeSecurityGroup(t, "twin"), f.project.MakeSecurityGroup(t, "twin")}
	f.project.MakeSecurityGroup(t, "Twin")
	twin := strings.TrimSuffix(machine, "}") + `, "security_groups": ["Twin", "twin"]}`
	found, fields = missing(machines+"web", strings.Replace(twin, "private", network, 1))
	if !slices.Equal(fields, []string{"spec.security_groups[1]"}) || !strings.Contains(found[0].Detail, ids[0]) ||
		!strings.Contains(found[0].Detail, ids[1]) {
		t.Errorf("groups of a name: missing are %+v", found)
	}
	if found, _ := missing(machines+"web", strings.Replace(machine, "private", network, 1)); found != nil {
		t.Errorf("of what exists are missing %+v", found)
	}
	declared(t, declare(t, f.Client, machines+"web", `{"spec": `+wrong+`}`), http.StatusCreated)
	if _, fields := missing(machines+"web", strings.Replace(wrong, `"data"`, `"data", "more"`, 1)); !slices.Equal(
		fields, []string{"spec.volumes[1]"}) {
		t.Errorf("of what is declared already are missing %v", fields)
	}
}
