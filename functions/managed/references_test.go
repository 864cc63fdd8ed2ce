package managed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// keyPairs is a session that lists key pairs, or fails.
type keyPairs struct {
	session

	err error
}

func (k keyPairs) KeyPairs(context.Context) ([]domain.KeyPair, error) {
	return []domain.KeyPair{{Name: "mine"}}, k.err
}

// TestKeyPairsNotListed: Nova's own 400, which has no field, is the answer as it is.
func TestKeyPairsNotListed(t *testing.T) {
	t.Parallel()
	err := apperr.New(apperr.Invalid, "nova rejects the request")
	if got := checkKeyPair(t.Context(), keyPairs{err: err}, []byte(`{"key_name": "k"}`)); !errors.Is(got, err) {
		t.Errorf("it is %v, want %v", got, err)
	}
	got := apperr.As(checkKeyPair(t.Context(), keyPairs{}, []byte(`{"key_name": "k"}`)))
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
