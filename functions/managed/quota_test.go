package managed

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
	over(declare(t, f.Client, machines+"web?dry_run=true", `{"spec": `+machine+`}`), "spec.flavor")
	declared(t, declare(t, f.Client, path, spec(1)), http.StatusOK)
}
