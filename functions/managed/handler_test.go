package managed

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fixture is the function with its database and the project whose resources it declares.
type fixture struct {
	*testkit.Client
	conn    *pgx.Conn
	project *testkit.Project
	server  *testkit.Client // without a token
	store   postgres.Managed

	database string
}

// start starts the function for a project of its own, with more of its environment.
func start(t *testing.T, more map[string]string) fixture {
	t.Helper()
	project, database := testkit.NewProject(t), testkit.Database(t)
	server := testkit.Start(t, testkit.Env(t, database, more), Function)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return fixture{
		server.As(project.Token(t)), testkit.Connect(t, database), project, server,
		postgres.Managed{DB: db},
		database,
	}
}

const (
	machines    = "/v1/managed/VirtualMachine/"
	deployments = "/v1/managed/VirtualMachineDeployment/"
	machine     = `{"flavor": "m1.tiny", "image": "cirros", "networks": ["private"]}`
)

// declare declares a resource, with headers in pairs.
func declare(t *testing.T, c *testkit.Client, path, body string, header ...string) testkit.Answer {
	t.Helper()
	return c.Do(t, "PUT", path, body, append(header, "Content-Type", "application/json")...)
}

// declared is the resource of an answer that must have the status.
func declared(t *testing.T, a testkit.Answer, status int) (m Managed) {
	t.Helper()
	if a.Status != status {
		t.Fatalf("got %d %s, want %d", a.Status, a.Body, status)
	}
	a.JSON(t, &m)
	return m
}

// userData is the user_data of the project's only resource, opened as reconcile-managed does.
func (f fixture) userData(t *testing.T) string {
	t.Helper()
	keys, err := seal.ManagedOpenConfig{ManagedPrivateKey: testkit.ManagedPrivateKey}.Keys()
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := f.store.Load(t.Context(), f.project.ID)
	if err != nil || len(loaded) != 1 {
		t.Fatalf("loaded %+v, %v", loaded, err)
	}
	var secrets domain.ManagedSecrets
	text, err := keys.Open(loaded[0].SealedFor(), loaded[0].Secrets)
	if err != nil || json.Unmarshal([]byte(text.Reveal()), &secrets) != nil {
		t.Fatalf("reconcile-managed cannot open the secrets: %v", err)
	}
	return string(secrets.UserData)
}

// refused checks the status and code of an answer, and that it names the field. "" = none.
func refused(t *testing.T, a testkit.Answer, status int, code, field string) {
	t.Helper()
	var problem struct{ Code string }
	if json.Unmarshal(a.Body, &problem); a.Status != status || problem.Code != code ||
		field != "" && !testkit.Names(t, a, field) {
		t.Errorf("got %d %s, want %d %s with %q in errors", a.Status, a.Body, status, code, field)
	}
}

// TestDeclare declares a server with secrets, changes it, rolls it back and deletes it. Nova is not called: what is
// declared is made by reconcile-managed.
func TestDeclare(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const path = machines + "web"
	userData := testkit.Canary("#cloud-config of a test, which no one may see")
	withSecret := strings.TrimSuffix(machine, "}") + fmt.Sprintf(`, "user_data": %q}`, userData)
	a := declare(t, f.Client, path, `{"spec": `+withSecret+`, "labels": {"app": "shop"}}`, "If-None-Match", "*")
	m := declared(t, a, http.StatusCreated)
	if m.Revision != 1 || m.Status != "pending" || m.Repair != domain.RepairManual || m.Provider != "nova" ||
		m.MaxRevisions != 10 || m.UserID != f.project.UserID || !slices.Equal(m.SecretFields, []string{"user_data"}) ||
		a.Header.Get("ETag") != `"1"` || strings.Contains(string(a.Body), "cloud-config") {
		t.Errorf("declared is %s with %v", a.Body, a.Header)
	}
	refused(t, declare(t, f.Client, path, `{"spec": `+machine+`}`, "If-None-Match", "*"), 412, "precondition", "")
	refused(t, declare(t, f.Client, path, `{"spec": `+machine+`}`, "If-Match", `"7"`), 412, "precondition", "")
	// the same again, without the secret, which stays
	for _, spec := range []string{machine, withSecret} {
		m = declared(t, declare(t, f.Client, path, `{"spec": `+spec+`, "labels": {"app": "shop"}}`), http.StatusOK)
		if m.Revision != 1 || len(m.SecretFields) != 1 {
			t.Errorf("the same again is %+v", m)
		}
	}
	if n := testkit.Scalar[int](t, f.conn, "select count(*)::int from connections where managed"); n != 1 {
		t.Errorf("%d connections were made", n)
	}
	if got := f.userData(t); got != userData {
		t.Errorf("reconcile-managed finds the user_data %q", got)
	}
	// another declaration
	other := strings.Replace(machine, "m1.tiny", "m1.small", 1)
	m = declared(t, declare(t, f.Client, path, `{"spec": `+other+`, "repair": "auto", "max_revisions": 2}`, "If-Match",
		`"1"`), http.StatusOK)
	if m.Revision != 2 || m.Repair != "auto" || len(m.Labels) != 0 || len(m.SecretFields) != 1 {
		t.Errorf("changed is %+v", m)
	}
	m = declared(t, declare(t, f.Client, path, `{"spec": `+strings.TrimSuffix(other, "}")+`, "user_data": null}}`), 200)
	if m.Revision != 3 || m.SecretFields != nil || m.MaxRevisions != 10 {
		t.Errorf("without user_data it is %+v", m)
	}
	m = declared(t, f.Post(t, path+"/rollback", `{"revision": 2}`), http.StatusOK)
	if m.Revision != 4 || len(m.SecretFields) != 1 || !strings.Contains(string(m.Spec), "m1.small") {
		t.Errorf("rolled back is %+v", m)
	}
	var list ManagedRevisions
	f.Get(t, path+"/revisions").JSON(t, &list)
	if len(list.Items) != 4 || list.Items[0].RolledBack != 2 || list.Items[3].Labels["app"] != "shop" {
		t.Errorf("its revisions are %+v", list)
	}
	a = declare(t, f.Client, path, `{"spec": `+machine+`}`, "If-Match", `"1"`)
	if refused(t, a, 412, "precondition", ""); !strings.Contains(string(a.Body), "its revision is 4") {
		t.Errorf("it does not say the present revision: %s", a.Body)
	}
	refused(t, f.Post(t, path+"/rollback", `{"revision": 9}`), 404, "not_found", "")
	refused(t, f.Post(t, path+"/rollback", `{"revision": 1}`, "If-Match", `"1"`), 412, "precondition", "")
	refused(t, f.Do(t, "DELETE", path, "", "If-Match", `"1"`), 412, "precondition", "")
	m = declared(t, f.Do(t, "DELETE", path, ""), http.StatusAccepted)
	if m.Status != domain.ManagedDeleting || m.Request != domain.ManagedDelete {
		t.Errorf("deleting is %+v", m)
	}
	refused(t, declare(t, f.Client, path, `{"spec": `+machine+`}`), 409, "conflict", "")
	refused(t, f.Post(t, path+"/rollback", `{"revision": 1}`), 409, "conflict", "")
	declared(t, f.Do(t, "DELETE", path, ""), http.StatusAccepted) // again
}

// TestTemplates: a resource begins with the spec of a flavor, and keeps it whatever becomes of the flavor.
func TestTemplates(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	template := `{"kind": "VirtualMachine", "spec": {"flavor": "m1.tiny", "image": "cirros"}}`
	a := f.Do(t, "PUT", "/v1/flavors/small", template, "Content-Type", "application/json")
	if a.Status != http.StatusCreated || a.Header.Get("ETag") != `"1"` {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	m := declared(t, declare(t, f.Client, machines+"web",
		`{"flavor": "small", "spec": {"networks": ["private"], "image": "debian"}}`), http.StatusCreated)
	var spec MachineSpec
	if err := json.Unmarshal(m.Spec, &spec); err != nil || spec.Flavor != "m1.tiny" || spec.Image != "debian" ||
		m.Flavor != "small" {
		t.Errorf("it is %s: %v", m.Spec, err)
	}
	refused(t, declare(t, f.Client, machines+"db", `{"flavor": "small"}`), 400, "invalid", "spec.networks")
	refused(t, declare(t, f.Client, "/v1/managed/Configmap/a", `{"flavor": "small"}`), 400, "invalid", "flavor")
	for body, field := range map[string]string{
		`{"kind": "VirtualMachine", "spec": {"flavor": 1}}`:                      "spec.flavor",
		`{"kind": "VirtualMachine", "spec": {"user_data": "x"}}`:                 "spec.user_data",
		`{"kind": "VirtualMachine", "spec": {}, "provider": "glance"}`:           "provider",
		`{"kind": "Router", "spec": {}}`:                                         "kind",
		`{"kind": "VirtualMachine"}`:                                             "spec",
		`{"kind": "VirtualMachineDeployment", "spec": {"count": 2, "shade": 1}}`: "spec.shade",
	} {
		refused(t, f.Do(t, "PUT", "/v1/flavors/other", body, "Content-Type", "application/json"), 400, "invalid", field)
	}
	refused(t, f.Do(t, "PUT", "/v1/flavors/a", `{"kind": "CI", "spec": {}}`, "Content-Type", "application/json"), 422,
		"unsupported_kind", "")
	a = f.Do(t, "PUT", "/v1/flavors/small", strings.Replace(template, "m1.tiny", "m1.small", 1), "Content-Type",
		"application/json")
	if a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	var shown Managed
	if f.Get(t, machines+"web").JSON(t, &shown); string(shown.Spec) != string(m.Spec) {
		t.Errorf("after a change of its flavor it is %s", shown.Spec)
	}
}

// TestTrusts: a user's declarations share one trust, which is renewed when less than half of it is left. What no one
// has any more is revoked.
func TestTrusts(t *testing.T) {
	t.Parallel()
	f := start(t, map[string]string{"MANAGED_TRUST_FOR": "1000h"})
	declared(t, declare(t, f.Client, machines+"a", `{"spec": `+machine+`}`), http.StatusCreated)
	declared(t, declare(t, f.Client, machines+"b", `{"spec": `+machine+`}`), http.StatusCreated)
	type connection struct {
		Status string
		Roles  []string
		Days   int
	}
	read := func() []connection {
		t.Helper()
		rows, _ := f.conn.Query(t.Context(), `
select status, array(select jsonb_array_elements_text(acts_as->'roles')) as roles,
       extract(day from expires_at - now())::int as days
from connections where managed order by id`)
		found, err := pgx.CollectRows(rows, pgx.RowToStructByName[connection])
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if all := read(); len(all) != 1 || all[0].Status != "active" || !slices.Equal(all[0].Roles, []string{"member"}) ||
		all[0].Days != 41 {
		t.Fatalf("the connections are %+v", all)
	}
	const shorter = "update connections set expires_at = now() + interval '499 hours'"
	if _, err := f.conn.Exec(t.Context(), shorter); err != nil {
		t.Fatal(err)
	}
	declared(t, declare(t, f.Client, machines+"a", `{"spec": `+machine+`}`), http.StatusOK)
	if all := read(); len(all) != 2 || all[0].Status != "deleted" || all[1].Status != "active" {
		t.Errorf("the connections are %+v", all)
	}
	if n := testkit.Scalar[int](t, f.conn, `
select count(*)::int from managed m join connections c on c.id = m.connection_id where c.status = 'active'`); n != 2 {
		t.Errorf("%d of 2 resources have the new trust", n)
	}
	if n := testkit.Scalar[int](t, f.conn, "select count(*)::int from trusts_to_revoke"); n != 0 {
		t.Errorf("%d trusts are announced and not stored", n)
	}
	// the delegation is lost: a delete takes another one
	const lost = "update connections set status = 'lost' where status = 'active'"
	if _, err := f.conn.Exec(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	declared(t, f.Do(t, "DELETE", machines+"a", ""), http.StatusAccepted)
	if all := read(); len(all) != 3 || all[2].Status != "active" {
		t.Errorf("the connections are %+v", all)
	}
	none := start(t, map[string]string{"TRUSTEE_USER_ID": ""})
	refused(t, declare(t, none.Client, machines+"a", `{"spec": `+machine+`}`), 501, "unsupported", "")
}

// header is what a request with this body needs.
func header(body string) []string {
	if body == "" {
		return nil
	}
	return []string{"Content-Type", "application/json"}
}

// TestUserDataBytes: user_data may be bytes that are no text, such as a compressed file. They are stored as they are,
// and the same in either form is no other revision.
func TestUserDataBytes(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const path = machines + "web"
	with := func(field, value string) string {
		return `{"spec": ` + strings.TrimSuffix(machine, "}") + fmt.Sprintf(", %q: %q}}", field, value)
	}
	for n, data := range []string{"\x1f\x8b\x08\xff\x00\xfe", "#!/bin/sh"} {
		text := base64.StdEncoding.EncodeToString([]byte(data))
		a := declare(t, f.Client, path, with("user_data_base64", text[:4]+"\n"+text[4:])) // as the command base64 wraps
		m := declared(t, a, []int{http.StatusCreated, http.StatusOK}[n])
		if got := f.userData(t); got != data || len(m.SecretFields) != 1 || m.Revision != n+1 ||
			strings.Contains(string(a.Body), text) {
			t.Errorf("stored are %q, and the answer is %s", got, a.Body)
		}
	}
	m := declared(t, declare(t, f.Client, path, with("user_data", "#!/bin/sh")), http.StatusOK)
	if m.Revision != 2 {
		t.Errorf("the same as text is revision %d", m.Revision)
	}
	m = declared(t, declare(t, f.Client, path, with("user_data_base64", "")), http.StatusOK)
	if len(m.SecretFields) != 0 {
		t.Errorf("removed is %+v", m)
	}
	long := base64.StdEncoding.EncodeToString(make([]byte, domain.MaxUserData+1))
	refused(t, declare(t, f.Client, path, with("user_data_base64", long)), 400, "invalid", "spec.user_data_base64")
	template := strings.Replace(with("user_data_base64", "eA=="), "{", `{"kind": "VirtualMachine", `, 1)
	refused(t, f.Do(t, "PUT", "/v1/flavors/a", template, "Content-Type", "application/json"), 400, "invalid",
		"spec.user_data_base64")
}

// TestNearestField: an unknown field of a spec is named with its path, and with the field that was probably meant.
func TestNearestField(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const unknown = " is not a field of this request; "
	for fields, want := range map[string]string{
		`"flavr": "a", "image": "a"`:    "spec.flavr:" + unknown + `did you mean "flavor"?`,
		`"shade": 1, "flavor": "a"`:     "spec.shade:" + unknown + "expected one of boot_volume, configmaps, ",
		`"Key_name": "x", "image": "a"`: `did you mean "key_name"?`,
	} {
		var problem struct{ Detail string }
		a := declare(t, f.Client, machines+"a", `{"spec": {`+fields+`, "networks": ["a"]}}`)
		if a.JSON(t, &problem); a.Status != 400 || !strings.Contains(problem.Detail, want) {
			t.Errorf("%s: got %d %s", fields, a.Status, problem.Detail)
		}
	}
	var problem struct{ Detail string }
	declare(t, f.Client, "/v1/managed/Loadbalancer/a",
		`{"spec": {"network": "a", "listeners": [{"ports": "TCP"}]}}`).JSON(t, &problem)
	if !strings.Contains(problem.Detail, "spec.listeners[0].ports:"+unknown+`did you mean "port"?`) {
		t.Errorf("got %s", problem.Detail)
	}
}
