package managed

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	secretOf   = `{"spec": {"payload": "a", "content_type": "text/plain"}}`
	balancerOf = `{"spec": {"network": "private", "listeners": [
		{"port": 80, "protocol": "TCP", "member_port": 80, "addresses": ["10.0.0.9"]}]}}`
)

// trustedRoles returns the roles of each trust that the project's member has made, as Keystone has them.
func (f fixture) trustedRoles(t *testing.T) (all []string) {
	t.Helper()
	for _, id := range f.project.Trusts(t) {
		var names []string
		for _, r := range f.project.ShowTrust(t, id).Roles {
			names = append(names, r.Name)
		}
		slices.Sort(names)
		all = append(all, strings.Join(names, "+"))
	}
	slices.Sort(all)
	return all
}

// wantTrusts checks the roles of the trusts.
func (f fixture) wantTrusts(t *testing.T, want ...string) {
	t.Helper()
	if got := f.trustedRoles(t); !slices.Equal(got, want) {
		t.Errorf("the trusts have the roles %q, want %q", got, want)
	}
}

// TestRolesOfTrusts: the trust of a resource has the roles that its kind requires, and no others.
func TestRolesOfTrusts(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	declared(t, declare(t, f.Client, machines+"a", `{"spec": `+machine+`}`), http.StatusCreated)
	f.wantTrusts(t, "member")
	declared(t, declare(t, f.Client, "/v1/managed/Loadbalancer/a", balancerOf), http.StatusCreated)
	declared(t, declare(t, f.Client, "/v1/managed/Secret/a", secretOf), http.StatusCreated)
	f.wantTrusts(t, "creator+member", "load-balancer_member+member", "member")
	for path, body := range map[string]string{
		"Configmap/a": `{"spec": {"data": {"a": "b"}}}`, "Loadbalancer/b": balancerOf, "Secret/b": secretOf,
	} {
		declared(t, declare(t, f.Client, "/v1/managed/"+path, body), http.StatusCreated)
	}
	f.wantTrusts(t, "creator+member", "load-balancer_member+member", "member")
}

// TestMissingRole: who lacks the role that a kind requires gets its name, from a dry run, too, and nothing is stored.
// Other kinds can be declared.
func TestMissingRole(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	declared(t, declare(t, f.Client, "/v1/managed/Secret/old", secretOf), http.StatusCreated)
	f.project.RemoveRole(t, f.project.UserID, "load-balancer_member")
	f.project.RemoveRole(t, f.project.UserID, "creator")
	f.Client = f.server.As(f.project.Token(t))
	for path, row := range map[string]struct{ body, role string }{
		"Loadbalancer/a": {balancerOf, "load-balancer_member"},
		"Secret/a":       {secretOf, "creator"},
	} {
		kind, _, _ := strings.Cut(path, "/")
		for _, query := range []string{"", "?dry_run=true"} {
			a := declare(t, f.Client, "/v1/managed/"+path+query, row.body)
			refused(t, a, http.StatusForbidden, "forbidden", "kind")
			if text := string(a.Body); !strings.Contains(text, "the kind "+kind+" requires the role "+row.role) {
				t.Errorf("%s%s: the role is not in %s", path, query, text)
			}
		}
		refused(t, f.Get(t, "/v1/managed/"+path), http.StatusNotFound, "not_found", "")
	}
	declared(t, declare(t, f.Client, machines+"a", `{"spec": `+machine+`}`), http.StatusCreated)
	refused(t, f.Post(t, "/v1/managed/Secret/old/rollback", `{"revision": 1}`), http.StatusForbidden, "forbidden", "kind")
	// a deletion that needs another trust says the same; without the objects it needs none
	const lost = "update connections set status = 'lost' where acts_as->'roles' ? 'creator'"
	if _, err := f.conn.Exec(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	refused(t, f.Do(t, "DELETE", "/v1/managed/Secret/old", ""), http.StatusForbidden, "forbidden", "kind")
	declared(t, f.Do(t, "DELETE", "/v1/managed/Secret/old?orphan=true", ""), http.StatusAccepted)
}

// TestManagedRolesSetting: MANAGED_ROLES says which roles a kind requires. Resources whose trust has too few get
// another one with the next declaration of their kind.
func TestManagedRolesSetting(t *testing.T) {
	t.Parallel()
	f := start(t, map[string]string{"MANAGED_ROLES": "none"})
	declared(t, declare(t, f.Client, machines+"a", `{"spec": `+machine+`}`), http.StatusCreated)
	declared(t, declare(t, f.Client, "/v1/managed/Secret/a", secretOf), http.StatusCreated)
	declared(t, declare(t, f.Client, "/v1/managed/Loadbalancer/a", balancerOf), http.StatusCreated)
	f.wantTrusts(t, "member")
	wider := testkit.Start(t, testkit.Env(t, f.database, map[string]string{
		"MANAGED_ROLES": "Secret=CREATOR,Loadbalancer=load-balancer_member,Loadbalancer=creator",
		"WRITE_ROLES":   "member,load-balancer_member,creator",
	}), Function).As(f.project.Token(t))
	declared(t, declare(t, wider, "/v1/managed/Loadbalancer/b", balancerOf), http.StatusCreated)
	f.wantTrusts(t, "creator+load-balancer_member+member", "member")
	for kind, want := range map[string]string{
		"VirtualMachine": `["member"]`, "Secret": `["member"]`,
		"Loadbalancer": `["member", "load-balancer_member", "creator"]`,
	} {
		if got := testkit.Scalar[string](t, f.conn, `
select distinct c.acts_as->>'roles' from managed m join connections c on c.id = m.connection_id where m.kind = $1`,
			kind); got != want {
			t.Errorf("%s has a trust with %s, want %s", kind, got, want)
		}
	}
	for _, setting := range []string{"Secret", "Secret=", "CI=x", "=x", "none,Secret=creator", "secret=creator"} {
		cfg := delegation.ManagedConfig{For: time.Hour, Roles: strings.Split(setting, ",")}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "MANAGED_ROLES") {
			t.Errorf("MANAGED_ROLES=%s: %v", setting, err)
		}
	}
}

// TestColleagueAfterNewSetting: the same declaration by a colleague leaves a resource with its user and its trust, also
// when MANAGED_ROLES says meanwhile that its kind requires other roles. Its user's own, or a change, gives it these.
func TestColleagueAfterNewSetting(t *testing.T) {
	t.Parallel()
	f, colleague := start(t, map[string]string{"MANAGED_ROLES": "none"}), testkit.NewProject(t)
	for _, role := range []string{"member", "creator"} {
		f.project.Grant(t, colleague.UserID, role)
	}
	in := *colleague
	in.ID = f.project.ID
	const path = "/v1/managed/Secret/a"
	declared(t, declare(t, f.Client, path, secretOf), http.StatusCreated)
	server := testkit.Start(t, testkit.Env(t, f.database, map[string]string{"MANAGED_ROLES": "Secret=creator"}), Function)
	first, second := server.As(f.project.Token(t)), server.As(in.Token(t))
	for _, step := range []struct {
		client             *testkit.Client
		body, user, trusts string
	}{
		{second, secretOf, f.project.UserID, `["member"]`},
		{first, secretOf, f.project.UserID, `["member", "creator"]`},
		{second, secretOf, f.project.UserID, `["member", "creator"]`},
		{second, strings.Replace(secretOf, `"a"`, `"b"`, 1), colleague.UserID, `["member", "creator"]`},
	} {
		m := declared(t, declare(t, step.client, path, step.body), http.StatusOK)
		got := testkit.Scalar[string](t, f.conn, `
select c.user_id || ' ' || (c.acts_as->>'roles') from managed m join connections c on c.id = m.connection_id`)
		if want := step.user + " " + step.trusts; got != want || m.UserID != step.user {
			t.Errorf("after %s it acts for %s, by the trust %s, want %s", step.body, m.UserID, got, want)
		}
	}
}

// TestMostResources: a project has no more resources than MANAGED_PER_PROJECT, also when several are declared
// concurrently. What it has can be changed, and one that is being deleted counts until it is deleted.
func TestMostResources(t *testing.T) {
	t.Parallel()
	const configmaps, files = "/v1/managed/Configmap/", `{"spec": {"data": {"a": "b"}}}`
	f := start(t, map[string]string{"MANAGED_PER_PROJECT": "3"})
	isRefused := func(a testkit.Answer) {
		t.Helper()
		refused(t, a, http.StatusConflict, "conflict", "")
		const limit = "at most 3 managed resources in a project (MANAGED_PER_PROJECT)"
		if text := string(a.Body); !strings.Contains(text, limit) {
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
		t.Errorf("%d of 8 concurrent ones are the third one", created)
	}
	isRefused(declare(t, f.Client, configmaps+"fourth", files))
	isRefused(declare(t, f.Client, configmaps+"fourth?dry_run=true", files))
	declared(t, declare(t, f.Client, configmaps+"first", `{"spec": {"data": {"a": "c"}}}`), http.StatusOK)
	declared(t, f.Do(t, "DELETE", configmaps+"second", ""), http.StatusAccepted)
	isRefused(declare(t, f.Client, configmaps+"fourth", files))

	other := f.server.As(testkit.NewProject(t).Token(t))
	if a := other.Get(t, "/v1/managed"); !strings.Contains(string(a.Body), `"managed":[]`) {
		t.Errorf("another project lists %s", a.Body)
	}
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
	// The one that counts finds that another request was faster.
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

// TestQuota: more servers than the project's quota allows are refused before anything is stored, also by a dry run and
// a rollback. Servers that are there already count once.
func TestQuota(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	f.project.SetQuota(t, 3)
	const path = deployments + "web"
	spec := func(count int) string {
		return fmt.Sprintf(`{"spec": {"flavor": "m1.tiny", "image": "cirros", "networks": ["private"], "count": %d}}`,
			count)
	}
	over := func(a testkit.Answer, field string) {
		t.Helper()
		refused(t, a, http.StatusForbidden, "quota_exceeded", field)
	}
	over(declare(t, f.Client, path+"?dry_run=true", spec(4)), "spec.count")
	over(declare(t, f.Client, path, spec(4)), "spec.count")
	stored := func() int {
		t.Helper()
		return testkit.Scalar[int](t, f.conn, `
select ((select count(*) from managed_revisions) + (select count(*) from connections))::int`)
	}
	if n := stored(); n != 0 {
		t.Errorf("%d rows were stored", n)
	}
	f.project.SetQuota(t, 5)
	declared(t, declare(t, f.Client, path, spec(5)), http.StatusCreated)
	declared(t, declare(t, f.Client, path, spec(3)), http.StatusOK)
	f.project.SetQuota(t, 3)
	declared(t, declare(t, f.Client, path, spec(3)), http.StatusOK)
	over(f.Do(t, "POST", path+"/rollback", `{"revision": 1}`, "Content-Type", "application/json"), "spec.count")
	if n := stored(); n != 2+1 {
		t.Errorf("%d rows are stored", n)
	}
	if _, err := f.conn.Exec(t.Context(), `
insert into managed_members (project_id, id, managed_id, ordinal, revision, object_id, status)
select project_id, gen_random_uuid(), id, n, 2, 's' || n, 'ready' from managed, generate_series(0, 2) n`); err != nil {
		t.Fatal(err)
	}
	declared(t, declare(t, f.Client, path, spec(5)), http.StatusOK) // two more
	f.project.SetQuota(t, 0)
	declared(t, declare(t, f.Client, path, spec(5)), http.StatusOK) // again, and two are not made yet
	over(declare(t, f.Client, machines+"web?dry_run=true", `{"spec": `+machine+`}`), "spec.flavor")
	declared(t, declare(t, f.Client, path, spec(1)), http.StatusOK)
	f.project.SetQuota(t, 9)
	f.project.SetVolumeQuota(t, 3)
	boots := strings.Replace(spec(3), `"count"`, `"boot_volume": {"size_gb": 2}, "count"`, 1)
	over(declare(t, f.Client, deployments+"disks", boots), "spec.boot_volume")
	boots = strings.Replace(boots, ": 2}", ": 1}", 1)
	declared(t, declare(t, f.Client, deployments+"disks", boots), http.StatusCreated)
}
