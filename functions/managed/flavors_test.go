package managed

import (
	"net/http"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
