package managed

import (
	"net/http"
	"slices"
	"strings"
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
	for _, setting := range []string{"Secret", "Secret=", "Pod=x", "=x", "none,Secret=creator", "secret=creator"} {
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
