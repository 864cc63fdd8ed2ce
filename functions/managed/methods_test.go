package managed

import (
	"net/http"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMethodsOfTheSource: each method of the source's resource service on flavors and resources has its route.
func TestMethodsOfTheSource(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const (
		flavor   = `{"name": "small", "kind": "VirtualMachine", "spec": {"flavor": "m1.tiny", "image": "cirros"}}`
		changed  = `{"kind": "VirtualMachine", "spec": {"flavor": "m1.small", "image": "cirros"}}`
		resource = `{"flavor": "small", "spec": {"networks": ["private"]}}`
		labels   = `{"flavor": "small", "spec": {"networks": ["private"]}, "labels": {"app": "shop"}}`
	)
	for _, row := range []struct {
		name, method, path, body string
		status                   int
		field                    string // of the answer
		want                     any
	}{
		{"CreateResourceFlavor", "POST", "/v1/flavors", flavor, http.StatusCreated, "name", "small"},
		{"GetResourceFlavor", "GET", "/v1/flavors/small", "", http.StatusOK, "kind", "VirtualMachine"},
		{"ListResourceFlavor", "GET", "/v1/flavors", "", http.StatusOK, "next", nil},
		{"CreateResource", "PUT", machines + "web", resource, http.StatusCreated, "status", "pending"},
		{"GetResource", "GET", machines + "web", "", http.StatusOK, "revision", 1.0},
		{"ListResource", "GET", "/v1/managed", "", http.StatusOK, "next", nil},
		{"UpdateResourceFlavor", "PUT", "/v1/flavors/small", changed, http.StatusOK, "provider", "nova"},
		{"UpdateResource", "PUT", machines + "web", labels, http.StatusOK, "revision", 2.0},
		{"DeleteResource", "DELETE", machines + "web", "", http.StatusAccepted, "status", "deleting"},
		{"DeleteResourceFlavor", "DELETE", "/v1/flavors/small", "", http.StatusNoContent, "", nil},
	} {
		a := f.Do(t, row.method, row.path, row.body, header(row.body)...)
		if a.Status != row.status {
			t.Errorf("%s: got %d %s, want %d", row.name, a.Status, a.Body, row.status)
			continue
		}
		if row.field == "" {
			continue
		}
		var answer map[string]any
		if a.JSON(t, &answer); answer[row.field] != row.want {
			t.Errorf("%s: %s is %v, want %v", row.name, row.field, answer[row.field], row.want)
		}
	}
	if n := testkit.Scalar[int](t, f.conn, "select count(*)::int from flavors"); n != 0 {
		t.Errorf("%d flavors are left", n)
	}
}

// header is what a request with this body needs.
func header(body string) []string {
	if body == "" {
		return nil
	}
	return []string{"Content-Type", "application/json"}
}
