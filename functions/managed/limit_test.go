package managed

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestMostResources: a project has no more resources than MANAGED_PER_PROJECT, also when several are declared at once.
// What it has can be changed, and one that is being deleted counts until it is gone.
func TestMostResources(t *testing.T) {
	t.Parallel()
	const configmaps, files = "/v1/managed/Configmap/", `{"spec": {"data": {"a": "b"}}}`
	f := start(t, map[string]string{"MANAGED_PER_PROJECT": "3"})
	isRefused := func(a testkit.Answer) {
		t.Helper()
		refused(t, a, http.StatusConflict, "conflict", "")
		if text := string(a.Body); !strings.Contains(text, "3 are the limit (MANAGED_PER_PROJECT)") {
			t.Errorf("the limit is not in %s", text)
		}
	}
	declared(t, declare(t, f.Client, configmaps+"first", files), http.StatusCreated)
	declared(t, declare(t, f.Client, configmaps+"second", files), http.StatusCreated)
	var all sync.WaitGroup
	var mu sync.Mutex
	created := 0
	for n := range 8 {
		all.Go(func() {
			a, err := f.Try(t, "PUT", fmt.Sprintf("%sat-once-%d", configmaps, n), files, "Content-Type",
				"application/json")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Error(err)
			case a.Status == http.StatusCreated:
				created++
			default:
				isRefused(a)
			}
		})
	}
	all.Wait()
	if created != 1 {
		t.Errorf("%d of 8 at once are the third one", created)
	}
	isRefused(declare(t, f.Client, configmaps+"fourth", files))
	isRefused(declare(t, f.Client, configmaps+"fourth?dry_run=true", files))
	declared(t, declare(t, f.Client, configmaps+"first", `{"spec": {"data": {"a": "c"}}}`), http.StatusOK)
	declared(t, f.Do(t, "DELETE", configmaps+"second", ""), http.StatusAccepted)
	isRefused(declare(t, f.Client, configmaps+"fourth", files))

	other := f.server.As(testkit.NewProject(t).Token(t))
	declared(t, declare(t, other, configmaps+"first", files), http.StatusCreated)
}
