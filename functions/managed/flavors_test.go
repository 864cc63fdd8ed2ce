package managed

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMostTemplates: a project has no more templates than MANAGED_PER_PROJECT, also when several are created
// concurrently, and can change those that it has.
func TestMostTemplates(t *testing.T) {
	t.Parallel()
	f := start(t, map[string]string{"MANAGED_PER_PROJECT": "3"})
	template := func(more string) string { return `{` + more + `"kind": "Configmap", "spec": {"data": {"a": "b"}}}` }
	put := func(path, body string) testkit.Answer { return f.Do(t, "PUT", path, body, header(body)...) }
	if a := put("/v1/flavors/first", template("")); a.Status != http.StatusCreated {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	var all sync.WaitGroup
	var created atomic.Int32
	for n := range 8 {
		all.Go(func() {
			a := f.Post(t, "/v1/flavors", template(fmt.Sprintf(`"name": "at-once-%d", `, n)))
			if a.Status == http.StatusCreated {
				created.Add(1)
			} else if a.Status != http.StatusConflict {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
		})
	}
	all.Wait()
	if created.Load() != 2 {
		t.Errorf("%d of 8 concurrent ones are the second and the third one", created.Load())
	}
	for _, a := range []testkit.Answer{
		f.Post(t, "/v1/flavors", template(`"name": "fourth", `)), put("/v1/flavors/fourth", template("")),
		put("/v1/flavors/fourth?dry_run=true", template("")),
	} {
		refused(t, a, http.StatusConflict, "conflict", "")
		if text := string(a.Body); !strings.Contains(text, "at most 3 flavors in a project (MANAGED_PER_PROJECT)") {
			t.Errorf("the limit is not in %s", text)
		}
	}
	changed := template(`"description": "other", `)
	if a := put("/v1/flavors/first", changed); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}

// TestLongSpecs are refused, in templates as in resources.
func TestLongSpecs(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70_000)
	for _, tc := range []struct{ kind, spec, field string }{
		{"Configmap", `{"data": {"a": "` + long + `"}}`, "spec.data"},
		{"VirtualMachine", `{"networks": ["` + long + `"]}`, "spec"},
		{"VirtualMachine", `{"metadata": {"a": "` + long + `"}}`, "spec"},
		{"VirtualMachine", `{"metadata": {"": "a"}}`, "spec.metadata"},
		{"VirtualMachineDeployment", `{"count": 1, "max_unavailable": 2}`, "spec.max_unavailable"},
		{"VirtualMachineDeployment", `{"max_unavailable": 2}`, ""},
		{"Image", `{"disk_format": "raw"}`, ""},
	} {
		kind := domain.Kind(tc.kind)
		_, err := templateOf(kind, Spec(tc.spec))
		var found []string
		if err != nil {
			for _, f := range apperr.As(err).Fields {
				found = append(found, f.Field)
			}
		}
		if tc.field == "" && err != nil || tc.field != "" && !slices.Contains(found, tc.field) {
			t.Errorf("%s %.50s: got %v", kind, tc.spec, err)
		}
		if strings.Contains(tc.spec, long) {
			if _, err := checkSpec(kind, fields([]byte(tc.spec))); err == nil ||
				!strings.Contains(err.Error(), tc.field) {
				t.Errorf("%s %.50s: got %v", kind, tc.spec, err)
			}
		}
	}
}

// TestFlavorInUse: a template that resources began with cannot be deleted, and the refusal names them.
func TestFlavorInUse(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const flavor = `{"name": "small", "kind": "VirtualMachine", "spec": {"flavor": "m1.tiny", "image": "cirros"}}`
	f.Post(t, "/v1/flavors", flavor)
	for n := range 5 {
		declared(t, declare(t, f.Client, fmt.Sprintf("%sweb-%d", machines, n),
			`{"flavor": "small", "spec": {"networks": ["private"]}}`), http.StatusCreated)
	}
	a := f.Do(t, "DELETE", "/v1/flavors/small", "")
	refused(t, a, http.StatusConflict, "conflict", "")
	const want = "VirtualMachine web-0, VirtualMachine web-1, VirtualMachine web-2 and 2 more"
	if !strings.Contains(string(a.Body), want) {
		t.Errorf("it says %s", a.Body)
	}
	for n := range 4 {
		declared(t, f.Do(t, "DELETE", fmt.Sprintf("%sweb-%d", machines, n), ""), http.StatusAccepted)
	}
	refused(t, f.Do(t, "DELETE", "/v1/flavors/small", ""), http.StatusConflict, "conflict", "")
	declared(t, declare(t, f.Client, machines+"web-4", `{"spec": `+machine+`}`), http.StatusOK)
	if a := f.Do(t, "DELETE", "/v1/flavors/small", ""); a.Status != http.StatusNoContent {
		t.Errorf("unused: got %d %s", a.Status, a.Body)
	}
}
