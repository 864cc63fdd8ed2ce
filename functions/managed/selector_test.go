package managed

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestSelector: resources are selected by labels that they have, and by labels that they have not. One without the key
// has not the label.
func TestSelector(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	for name, labels := range map[string]string{
		"a": `{"app": "web", "tier": "db"}`, "b": `{"app": "web", "tier": "front"}`, "c": `{"app": "web"}`, "d": `{}`,
	} {
		declared(t, declare(t, f.Client, "/v1/managed/Configmap/"+name,
			fmt.Sprintf(`{"spec": {"data": {"a": "b"}}, "labels": %s}`, labels)), http.StatusCreated)
	}
	for query, want := range map[string]string{
		"app=web":                    "a b c",
		"app=web,tier!=db":           "b c",
		"tier!=db":                   "b c d",
		"tier!=db,tier!=front":       "c d",
		"app=web,tier=db,tier!=db":   "",
		"app=web,tier!=":             "a b c",
		"app=web,tier!=db&limit=100": "b c",
	} {
		var page ManagedPage
		f.Get(t, "/v1/managed?label="+query).JSON(t, &page)
		var names []string
		for _, m := range page.Items {
			names = append(names, m.Name)
		}
		if slices.Sort(names); strings.Join(names, " ") != want {
			t.Errorf("%s: got %q, want %q", query, names, want)
		}
	}
	for _, wrong := range []string{"app!", "!=x", "app!=x%20y"} {
		refused(t, f.Get(t, "/v1/managed?label="+wrong), http.StatusBadRequest, "invalid", "")
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
