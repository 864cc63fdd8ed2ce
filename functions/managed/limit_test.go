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

// TestDeclarationsAreLimited: those that make a revision, and those whose secret takes a digest. A dry run of a new
// resource takes none.
func TestDeclarationsAreLimited(t *testing.T) {
	t.Parallel()
	const configmap = "/v1/managed/Configmap/files"
	f := start(t, map[string]string{"DECLARATION_RATE_LIMIT": "4"})
	files := func(text string) string { return fmt.Sprintf(`{"spec": {"data": {"a": %q}}}`, text) }
	secret := `{"spec": ` + strings.TrimSuffix(machine, "}") + `, "user_data": "#!/bin/sh"}}`
	for n, tc := range []struct {
		status     int
		path, body string
	}{
		{201, configmap, files("b")},
		{200, configmap, files("b")}, // nothing differs
		{200, configmap + "?dry_run=true", files("c")},
		{200, configmap, files("c")},
		{200, machines + "web?dry_run=true", secret},
		{201, machines + "web", secret},
		{200, machines + "web?dry_run=true", secret},
		{429, machines + "web?dry_run=true", secret},
		{429, machines + "web", secret},
		{429, configmap, files("d")},
		{200, configmap, files("c")},
		{200, machines + "db?dry_run=true", secret},
	} {
		if a := declare(t, f.Client, tc.path, tc.body); a.Status != tc.status ||
			a.Status == 429 && a.Header.Get("RateLimit-Policy") != `"declaration";q=4;w=60` {
			t.Errorf("declaration %d: got %d %.200s, want %d", n, a.Status, a.Body, tc.status)
		} else if strings.HasSuffix(tc.path, "db?dry_run=true") && !strings.Contains(string(a.Body), "spec.user_data") {
			t.Errorf("the plan lacks the secret: %s", a.Body)
		}
	}
	rollback := f.Post(t, configmap+"/rollback", `{"revision": 1}`)
	refused(t, rollback, http.StatusTooManyRequests, "rate_limited", "")
}

// TestRacesCountOnce: a declaration, or a rollback, that others change meanwhile is repeated, and counts once.
func TestRacesCountOnce(t *testing.T) {
	t.Parallel()
	const configmap = "/v1/managed/Configmap/files"
	f := start(t, map[string]string{"DECLARATION_RATE_LIMIT": "100"})
	files := func(text string) string { return fmt.Sprintf(`{"spec": {"data": {"a": %q}}}`, text) }
	declared(t, declare(t, f.Client, configmap, files("b")), http.StatusCreated)
	// Whoever counts finds that another request was faster.
	if _, err := f.conn.Exec(t.Context(), `create sequence counted;
create function race() returns trigger language plpgsql security definer as $$ begin
    perform nextval('counted');
    update managed set version = version + 1;
    return new;
end $$;
create trigger race before insert or update on rate_limits for each row when (new.name = 'declaration')
    execute function race()`); err != nil {
		t.Fatal(err)
	}
	counted := func() int { return testkit.Scalar[int](t, f.conn, "select last_value::int from counted") }
	declared(t, declare(t, f.Client, configmap, files("c")), http.StatusOK)
	first := counted()
	declared(t, f.Post(t, configmap+"/rollback", `{"revision": 1}`), http.StatusOK)
	// The trigger runs twice where the row exists: for the insert, and for the update in its place.
	if second := counted() - first; first > 2 || second > 2 {
		t.Errorf("counted %d and %d times", first, second)
	}
}
