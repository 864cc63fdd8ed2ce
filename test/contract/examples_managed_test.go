package contract_test

import (
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// managedStory declares a deployment and a template. reconcile-managed does not see that there is work, so nothing is
// made in Nova.
func (s *story) managedStory(t *testing.T) {
	s.exec(t, `create function later() returns trigger language plpgsql
as 'begin new.due_at := ''infinity''; return new; end'`)
	s.exec(t, "create trigger later before insert or update on managed_projects for each row execute function later()")
	anyVersion := []string{"If-Match", ""}
	of := func(id, name string) variant {
		path := strings.NewReplacer("{kind}", name, "{name}", "web", "{number}", "1").Replace(s.operations[id].path)
		return variant{path: path, header: anyVersion}
	}
	s.ok(t, "listProviders", 200, variant{})

	s.ok(t, "createFlavor", 201, variant{})
	s.ok(t, "createFlavor", 409, variant{})
	s.ok(t, "createFlavor", 422, variant{set: map[string]any{"kind": "CI"}})
	s.ok(t, "listFlavors", 200, variant{query: []string{"limit=1", "kind=VirtualMachineDeployment"}})
	s.ok(t, "getFlavor", 200, variant{})
	s.ok(t, "putFlavor", 412, variant{})
	s.ok(t, "putFlavor", 200, variant{header: anyVersion})
	s.ok(t, "putFlavor", 422, variant{header: anyVersion, set: map[string]any{"kind": "CI"}})
	s.ok(t, "putFlavor", 201, variant{header: anyVersion, path: "/v1/flavors/other"})

	s.ok(t, "putManaged", 412, variant{})
	s.ok(t, "putManaged", 200, variant{header: anyVersion, query: []string{"dry_run=true"}})
	s.ok(t, "putManaged", 201, variant{header: anyVersion})
	s.ok(t, "putManaged", 200, variant{header: anyVersion, example: "template"})
	s.ok(t, "deleteFlavor", 409, variant{header: anyVersion}) // the resource uses it
	s.ok(t, "listManaged", 200, variant{query: []string{"name", "limit=1", "kind=VirtualMachineDeployment"}})
	s.ok(t, "listManagedOfKind", 200, variant{})
	s.ok(t, "getManaged", 200, variant{})
	s.ok(t, "listManagedRevisions", 200, variant{})
	s.ok(t, "getManagedRevision", 200, variant{})
	s.ok(t, "diffManaged", 200, variant{query: []string{"from=1", "to=2"}})
	s.ok(t, "rollbackManaged", 412, variant{})
	s.ok(t, "rollbackManaged", 200, variant{header: anyVersion})
	for _, id := range []string{"putManaged", "listManagedOfKind"} {
		s.ok(t, id, 404, of(id, "Router"))
	}
	for _, id := range []string{
		"listManagedOfKind", "getManaged", "putManaged", "rollbackManaged", "deleteManaged", "listManagedRevisions",
		"getManagedRevision", "diffManaged",
	} {
		s.ok(t, id, 422, of(id, "CI"))
	}

	s.unexpected(t)
	s.ok(t, "deleteManaged", 412, variant{header: []string{"If-Match", `"77"`}})
	s.exec(t, "update connections set status = 'lost' where managed")
	id, secret := s.project.AppCredential(t)
	delegated := s.client.As(s.project.AppCredentialToken(t, id, secret))
	s.ok(t, "deleteManaged", 409, variant{client: delegated, header: anyVersion})
	s.ok(t, "deleteManaged", 202, variant{header: anyVersion})
	s.ok(t, "putManaged", 409, variant{header: anyVersion})
	s.ok(t, "rollbackManaged", 409, variant{header: anyVersion})
	s.ok(t, "deleteFlavor", 412, variant{})
	s.ok(t, "deleteFlavor", 204, variant{header: anyVersion})
}

// unexpected records an object without a resource, as reconcile-managed does when it has found it twice.
func (s *story) unexpected(t *testing.T) {
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(s.conn.Config().ConnString()), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	claim := domain.NewClaim()
	s.exec(t, "update managed_projects set claim_id = $1", claim.ID)
	for range 2 {
		_, err = postgres.Managed{DB: db}.SaveUnexpected(t.Context(), claim, s.project.ID, []domain.UnexpectedObject{
			{ObjectID: "8a1d0c5e-2f43-4c7e-9b1a-6d5e4f3a2b10", Name: "web-0", Provider: "nova"},
		}, 0)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// strayManaged stores the resource of the examples without a delegation.
func strayManaged(t *testing.T, database string, project *testkit.Project) {
	t.Helper()
	if _, err := testkit.Pool(t, database).Exec(t.Context(), `
with p as (insert into managed_projects (project_id, domain_id, due_at) values ($1, '', 'infinity') returning project_id),
m as (insert into managed (project_id, id, kind, name, user_id, provider, repair, max_revisions, revision, request,
                           status)
      select project_id, gen_random_uuid(), 'VirtualMachineDeployment', 'web', 'u', 'nova', 'manual', 10, 1, 'create',
             'pending' from p
      returning *)
insert into managed_revisions (project_id, managed_id, number, spec, user_id)
select project_id, id, 1, '{"count": 0}', 'u' from m`, project.ID); err != nil {
		t.Fatal(err)
	}
}
