package managed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	engine "github.com/cloudfn/cloudfn/shared/managed"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDiff compares revisions field by field, and the declared one with the members: what was not made yet, and what
// others have changed.
func TestDiff(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const path = deployments + "web"
	with := func(more string) string {
		return `{"spec": ` + strings.TrimSuffix(machine, "}") + ", " + more + `}, "labels": {"app": "shop"}}`
	}
	declared(t, declare(t, f.Client, path, with(`"count": 2, "metadata": {"a": "1", "b": "2"}`)), http.StatusCreated)
	diff := func(query string) ManagedDiff {
		t.Helper()
		a := f.Get(t, path+"/diff"+query)
		if a.Status != http.StatusOK {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		var out ManagedDiff
		a.JSON(t, &out)
		return out
	}
	check := func(query string, from, to int, want ...ManagedDifference) {
		t.Helper()
		got := diff(query)
		if d := cmp.Diff(want, got.Items, cmp.Transformer("", func(all []ManagedDifference) []ManagedDifference {
			return append([]ManagedDifference(nil), all...) // [] and nil are the same
		})); d != "" || got.From != from || got.To != to {
			t.Errorf("%s: from %d to %d %s", query, got.From, got.To, d)
		}
	}
	check("", 1, 0, ManagedDifference{Path: "spec.count", From: 2.0, To: 0.0})
	body := with(`"count": 3, "metadata": {"b": "3"}, "user_data": "x"`)
	declared(t, declare(t, f.Client, path, strings.Replace(body, "shop", "web", 1)), http.StatusOK)
	check("?from=1&to=2", 1, 2,
		ManagedDifference{Path: "labels.app", From: "shop", To: "web"},
		ManagedDifference{Path: "spec.count", From: 2.0, To: 3.0},
		ManagedDifference{Path: "spec.metadata.a", From: "1"},
		ManagedDifference{Path: "spec.metadata.b", From: "2", To: "3"},
		ManagedDifference{Path: "spec.user_data"})
	check("?to=2", 2, 2)

	drifted, old, deleted, missing := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	if _, err := f.conn.Exec(t.Context(), `
with web as (
    update managed set drift = jsonb_build_array(
        jsonb_build_object('member', $1::uuid, 'field', 'flavor', 'declared', 'm1.tiny', 'actual', 'm1.small'),
        jsonb_build_object('member', $3::uuid, 'field', 'exists', 'declared', true, 'actual', false))
    returning project_id, id)
insert into managed_members (project_id, managed_id, id, ordinal, revision, object_id, status)
select project_id, web.id, x.* from web, (values
    ($1::uuid, 0, 2, 'a', 'ready'), ($2, 1, 1, 'b', 'ready'), ($3, 2, 2, 'c', 'ready'), ($4, 3, 2, '', 'creating')) x`,
		drifted, old, deleted, missing); err != nil {
		t.Fatal(err)
	}
	check("", 2, 0,
		ManagedDifference{Path: "spec.count", From: 3.0, To: 2.0},
		ManagedDifference{Member: drifted, Path: "spec.flavor", From: "m1.tiny", To: "m1.small"},
		ManagedDifference{Member: old, Path: "spec.metadata.a", To: "1"},
		ManagedDifference{Member: old, Path: "spec.metadata.b", From: "3", To: "2"},
		ManagedDifference{Member: old, Path: "spec.user_data"},
		ManagedDifference{Member: deleted, Path: "exists", From: true, To: false},
		ManagedDifference{Member: missing, Path: "exists", From: true, To: false})
	if got := diff("?from=1"); len(got.Items) != 6 || got.Items[0].Path != "spec.metadata.a" {
		t.Errorf("revision 1 differs from what is real in %+v", got.Items)
	}

	refused(t, f.Get(t, path+"/diff?from=7"), 404, "not_found", "")
	refused(t, f.Get(t, path+"/diff?from=1&to=7"), 404, "not_found", "")
	refused(t, f.Get(t, path+"/diff?from=a"), 400, "invalid", "from")
	refused(t, f.Get(t, path+"/diff?to=0"), 400, "invalid", "to")
	refused(t, f.Get(t, deployments+"other/diff"), 404, "not_found", "")
	refused(t, f.server.As(testkit.NewProject(t).Token(t)).Get(t, path+"/diff"), 404, "not_found", "")
}

// TestChangedFiles: a server with other files than its configmaps have now differs, until its user_data are not known;
// and the plan of a configmap says what its change does to which servers.
func TestChangedFiles(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	const files = "/v1/managed/Configmap/files"
	text := func(text string) string { return `{"spec": {"data": {"motd": "` + text + `"}}}` }
	declared(t, declare(t, f.Client, files, text("one")), http.StatusCreated)
	for path, update := range map[string]string{machines + "db": "in_place", machines + "pet": "replace"} {
		spec := strings.TrimSuffix(machine, "}") + `, "configmaps": ["files"], "update": "` + update + `"}`
		declared(t, declare(t, f.Client, path, `{"spec": `+spec+`}`), http.StatusCreated)
	}
	var stored []byte
	if err := f.conn.QueryRow(t.Context(), `
select spec from managed_revisions r join managed m on m.id = r.managed_id where name = 'db'`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	digest := func(text string) string {
		spec, _ := json.Marshal(domain.ConfigmapSpec{Data: map[string]string{"motd": text}})
		return engine.UserDataDigest(domain.Revision{Spec: stored}, engine.NewInventory([]domain.Managed{
			{Kind: domain.KindConfigmap, Name: "files", Spec: spec},
		}, nil))
	}
	id := uuid.New()
	if _, err := f.conn.Exec(t.Context(), `
insert into managed_members (project_id, managed_id, id, ordinal, revision, object_id, status, user_data)
select project_id, id, $1, 0, 1, 'a', 'ready', $2 from managed where name = 'db'`, id, digest("one")); err != nil {
		t.Fatal(err)
	}
	check := func(what string, want ...ManagedDifference) {
		t.Helper()
		var got ManagedDiff
		f.Get(t, machines+"db/diff").JSON(t, &got)
		if d := cmp.Diff(append([]ManagedDifference{}, want...), got.Items); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	check("as declared")
	plan := declared(t, declare(t, f.Client, files+"?dry_run=true", text("two")), http.StatusOK).Plan[0]
	if want := "only new servers of VirtualMachine db get the change, until update is replace; other servers take " +
		"the place of those of VirtualMachine pet: what is on their disks is lost"; plan.Action != planUpdate ||
		plan.Note != want {
		t.Errorf("the plan is %+v", plan)
	}
	declared(t, declare(t, f.Client, files, text("two")), http.StatusOK)
	check("changed", ManagedDifference{
		Member: id, Path: "spec.configmaps", From: "sha256:" + digest("two"), To: "sha256:" + digest("one"),
	})
	if _, err := f.conn.Exec(t.Context(), "update managed_members set user_data = ''"); err != nil {
		t.Fatal(err)
	}
	check("not known")
	plan = declared(t, declare(t, f.Client, files+"?dry_run=true", text("two")), http.StatusOK).Plan[0]
	if plan.Action != planNone || plan.Note != "" {
		t.Errorf("the plan of the same is %+v", plan)
	}
}

// TestDiffOfOneObject: a resource with one object differs while the object is absent, and lists of objects are compared
// entry by entry.
func TestDiffOfOneObject(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	declared(t, declare(t, f.Client, machines+"db", `{"spec": `+machine+`}`), http.StatusCreated)
	var got ManagedDiff
	f.Get(t, machines+"db/diff").JSON(t, &got)
	if len(got.Items) != 1 || got.Items[0].Path != "exists" || got.Items[0].To != false {
		t.Errorf("got %+v", got)
	}
	out := map[string]any{}
	flatten(out, "spec", map[string]any{
		"listeners": []any{map[string]any{"port": 80}}, "networks": []any{"a", "b"}, "none": map[string]any{},
	})
	want := map[string]any{"spec.listeners[0].port": 80, "spec.networks": []any{"a", "b"}}
	if d := cmp.Diff(want, out); d != "" {
		t.Error(d)
	}
}

// TestDeclaredAt finds the declared value of a drift, also of an item of a list; numbers are the same in both forms.
func TestDeclaredAt(t *testing.T) {
	t.Parallel()
	declared := map[string]any{"spec.tags": []any{"a", "b.c"}, "spec.size_gb": json.Number("10")}
	for path, want := range map[string]any{
		"spec.tags.a": "a", "spec.tags.b.c": "b.c", "spec.tags.d": nil, "spec.name": nil,
		"spec.size_gb": json.Number("10"),
	} {
		if got := declaredAt(declared, path); got != want {
			t.Errorf("%s: got %v, want %v", path, got, want)
		}
	}
	if !isSameJSON(json.Number("10"), 10.0) || isSameJSON("10", 10.0) {
		t.Error("numbers are not compared by their JSON")
	}
}

// TestKeyPairsNotListed: Nova's own 400, which has no field, is the answer as it is.
func TestKeyPairsNotListed(t *testing.T) {
	t.Parallel()
	list := func(err error) func(context.Context) ([]domain.KeyPair, error) {
		return func(context.Context) ([]domain.KeyPair, error) { return []domain.KeyPair{{Name: "mine"}}, err }
	}
	err := apperr.New(apperr.Invalid, "nova rejects the request")
	if got := checkKeyPair(t.Context(), list(err), []byte(`{"key_name": "k"}`)); !errors.Is(got, err) {
		t.Errorf("it is %v, want %v", got, err)
	}
	got := apperr.As(checkKeyPair(t.Context(), list(nil), []byte(`{"key_name": "k"}`)))
	if len(got.Fields) != 1 || got.Fields[0].Field != "spec.key_name" {
		t.Errorf("the fields are %+v", got.Fields)
	}
}

// TestDryRunReferences: a dry run lists what a declaration newly names and nothing has. What stays, what is declared
// already and what the cloud has pass. The declaration itself is accepted: all of it may be declared later.
func TestDryRunReferences(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	missing := func(path, spec string) (found []PlanMissing, fields []string) {
		t.Helper()
		m := declared(t, declare(t, f.Client, path+"?dry_run=true", `{"spec": `+spec+`}`), http.StatusOK)
		for _, p := range m.Plan {
			found = append(found, p.Missing...)
		}
		for _, p := range found {
			fields = append(fields, p.Field)
		}
		return found, fields
	}
	network := testkit.Sandbox(t).Network
	wrong := `{"flavor": "m1.tinny", "image": "debiam", "networks": ["` + network + `", "nowhere"], "key_name": "no-key",
		"security_groups": ["default", "no-group"], "volumes": ["data"], "configmaps": ["files", "no-files"]}`
	declared(t, declare(t, f.Client, "/v1/managed/Configmap/files", `{"spec": {"data": {"a": "b"}}}`), http.StatusCreated)
	found, fields := missing(machines+"web", wrong)
	want := []string{
		"spec.configmaps[1]", "spec.flavor", "spec.image", "spec.key_name", "spec.networks[1]",
		"spec.security_groups[1]", "spec.volumes[0]",
	}
	if !slices.Equal(fields, want) {
		t.Fatalf("missing are %+v, want %v", found, want)
	}
	if found[0].Kind != "Configmap" || found[2].Kind != "Image" || found[6].Kind != "Volume" ||
		found[0].Name != "no-files" || !strings.HasSuffix(found[1].Detail, `did you mean "m1.tiny"?`) {
		t.Errorf("missing are %+v", found)
	}
	found, _ = missing(machines+"web", strings.Replace(wrong, `"files", "no-files"`, `"file"`, 1))
	if found[0].Detail != `there is no Configmap "file"; did you mean "files"?` {
		t.Errorf("of a name beside another one are missing %+v", found)
	}
	ids := []string{f.project.MakeSecurityGroup(t, "twin"), f.project.MakeSecurityGroup(t, "twin")}
	f.project.MakeSecurityGroup(t, "Twin")
	twin := strings.TrimSuffix(machine, "}") + `, "security_groups": ["Twin", "twin"]}`
	found, fields = missing(machines+"web", strings.Replace(twin, "private", network, 1))
	if !slices.Equal(fields, []string{"spec.security_groups[1]"}) || !strings.Contains(found[0].Detail, ids[0]) ||
		!strings.Contains(found[0].Detail, ids[1]) {
		t.Errorf("groups of a name: missing are %+v", found)
	}
	if found, _ := missing(machines+"web", strings.Replace(machine, "private", network, 1)); found != nil {
		t.Errorf("of what exists are missing %+v", found)
	}
	declared(t, declare(t, f.Client, machines+"web", `{"spec": `+wrong+`}`), http.StatusCreated)
	if _, fields := missing(machines+"web", strings.Replace(wrong, `"data"`, `"data", "more"`, 1)); !slices.Equal(
		fields, []string{"spec.volumes[1]"}) {
		t.Errorf("of what is declared already are missing %v", fields)
	}
}

// TestPlanOfOtherNames: an id in place of a name, or the reverse, replaces no server; another object does.
func TestPlanOfOtherNames(t *testing.T) {
	t.Parallel()
	f := start(t, nil)
	own, other := f.project.MakeSecurityGroup(t, "own"), f.project.MakeSecurityGroup(t, "other")
	sandbox := testkit.Sandbox(t)
	spec := func(group, update string) string {
		return fmt.Sprintf(`{"spec": {"flavor": "m1.tiny", "image": "cirros", "networks": [%q], "security_groups": [%q],
			"update": %q}}`, sandbox.Network, group, update)
	}
	for _, update := range []string{"replace", "in_place"} {
		path := machines + strings.ReplaceAll(update, "_", "-")
		declared(t, declare(t, f.Client, path, spec("own", update)), http.StatusCreated)
		for group, want := range map[string]bool{own: true, other: false, "other": false, "absent": false} {
			p := declared(t, declare(t, f.Client, path+"?dry_run=true", spec(group, update)), http.StatusOK).Plan[0]
			if isSame := p.Action == planUpdate && p.Note == ""; isSame != want || len(p.Fields) != 1 {
				t.Errorf("%s: the plan from own to %s is %+v", update, group, p)
			}
		}
	}
}

// TestColleague: a resource acts for the user who has changed it last. The same declaration by another one leaves that,
// until what the first has delegated ends. Who adopts it has its key pair: each user has others.
func TestColleague(t *testing.T) {
	t.Parallel()
	f, colleague := start(t, nil), testkit.NewProject(t)
	f.project.MakeKeyPair(t, "k")
	f.project.Grant(t, colleague.UserID, "member")
	in := *colleague
	in.ID = f.project.ID
	first, second := f.Client, f.server.As(in.Token(t))
	const path = deployments + "web"
	spec := func(count int, key string) string {
		return fmt.Sprintf(`{"spec": {"count": %d, "flavor": "m1.tiny", "image": "cirros", "networks": ["private"],
			"key_name": %q}}`, count, key)
	}
	actsFor := func(what string, a testkit.Answer, user string) {
		t.Helper()
		m := declared(t, a, http.StatusOK)
		trustor := testkit.Scalar[string](t, f.conn, `
select c.user_id from managed m join connections c on c.id = m.connection_id where m.name = 'web' and c.status = 'active'`)
		if m.UserID != user || trustor != user {
			t.Errorf("%s: it acts for %s, by a trust of %s, want %s", what, m.UserID, trustor, user)
		}
	}
	declared(t, declare(t, first, path, spec(2, "k")), http.StatusCreated)
	actsFor("the same", declare(t, second, path, spec(2, "k")), f.project.UserID)
	f.wantTrusts(t, "member")
	if n := len(in.Trusts(t)); n != 0 {
		t.Errorf("the colleague has made %d trusts", n)
	}
	for _, query := range []string{"", "?dry_run=true"} {
		refused(t, declare(t, second, path+query, spec(3, "k")), http.StatusBadRequest, "invalid", "spec.key_name")
	}
	actsFor("another key pair is absent", declare(t, first, path, spec(3, "k")), f.project.UserID)
	refused(t, second.Post(t, path+"/rollback", `{"revision": 1}`), http.StatusBadRequest, "invalid", "spec.key_name")
	const lost = "update connections set status = 'lost'"
	if _, err := f.conn.Exec(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	refused(t, declare(t, second, path, spec(3, "k")), http.StatusBadRequest, "invalid", "spec.key_name")
	in.MakeKeyPair(t, "k")
	actsFor("the first's trust has ended", declare(t, second, path, spec(3, "k")), colleague.UserID)
	actsFor("a change", declare(t, first, path, spec(2, "k")), f.project.UserID)
	in.MakeKeyPair(t, "other")
	actsFor("a change with a key pair of their own", declare(t, second, path, spec(2, "other")), colleague.UserID)
}
