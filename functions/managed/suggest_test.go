package managed

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestNearestName: a field that the kind does not have is named by its path, with the nearest name.
func TestNearestName(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		kind       domain.Kind
		spec, want string
	}{
		{
			domain.KindMachine, `{"imgae": "a"}`,
			`spec.imgae: is not a field of VirtualMachine; the nearest one is "image"`,
		},
		{domain.KindMachine, `{"count": 1}`, "spec.count: is not a field of VirtualMachine"},
		{
			domain.KindDeployment, `{"cuont": 1}`,
			`spec.cuont: is not a field of VirtualMachineDeployment; the nearest one is "count"`,
		},
		{
			domain.KindMachine, `{"Key_Name": "a"}`,
			`spec.Key_Name: is not a field of VirtualMachine; the nearest one is "key_name"`,
		},
		{
			domain.KindBalancer, `{"listeners": [{"prot": 80}]}`,
			`spec.listeners[0].prot: is not a field of Loadbalancer; the nearest one is "port"`,
		},
		{domain.KindVolume, `{"shade": 1}`, "spec.shade: is not a field of Volume"},
	} {
		var got []string
		for _, f := range faultsOf(row.kind, fields([]byte(row.spec))) {
			got = append(got, f.Field+": "+f.Detail)
		}
		if !strings.Contains("\n"+strings.Join(got, "\n")+"\n", "\n"+row.want+"\n") {
			t.Errorf("%s: got %q, want %q", row.spec, got, row.want)
		}
	}
}

// TestTemplateOfAnotherProject: a flavor of another project is absent.
func TestTemplateOfAnotherProject(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	template := `{"kind": "VirtualMachine", "spec": {"flavor": "m1.tiny", "image": "cirros"}}`
	if a := f.Do(t, "PUT", "/v1/flavors/small", template, header(template)...); a.Status != http.StatusCreated {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	other := f.server.As(testkit.NewProject(t).Token(t))
	refused(t, other.Get(t, "/v1/flavors/small"), http.StatusNotFound, "not_found", "")
	refused(t, declare(t, other, machines+"web", `{"flavor": "small", "spec": {"networks": ["private"]}}`),
		http.StatusBadRequest, "invalid", "flavor")
	refused(t, other.Do(t, "DELETE", "/v1/flavors/small", ""), http.StatusNotFound, "not_found", "")
}
