package postgres_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestRetentionResumes: a walk over the final orders continues where the last one stopped, and begins again after its
// end. The orders before are those whose instances live.
func TestRetentionResumes(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	a := aged{t, testkit.Connect(t, database), map[uuid.UUID]string{}}
	a.order("before", "done", "100 days", nil, a.instance("deleted 1", domain.InstanceDeleted, tooOld, ""))
	a.order("after", "done", "95 days", nil, a.instance("deleted 2", domain.InstanceDeleted, tooOld, ""))
	a.exec(`insert into retention_markers (one, updated_at, project_id, order_id)
values (true, now() - interval '96 days', '', gen_random_uuid())`)
	store := postgres.Retention{DB: open(t, database), Config: kept}
	for _, want := range [][]string{{"before", "deleted 1"}, nil} {
		done, err := store.DeleteUntil(t.Context(), time.Now().Add(time.Hour))
		left := a.left()
		slices.Sort(left)
		if !done || err != nil || !slices.Equal(left, want) {
			t.Errorf("done %t, left %q, want %q: %v", done, left, want, err)
		}
	}
}

// TestRetentionStopsBetweenPages: what a walk has read is recorded, also when nothing of it could be deleted.
func TestRetentionStopsBetweenPages(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	exec(t, conn, `
insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, updated_at)
select 'p1', gen_random_uuid(), 'd', 'u', '', '{}', 'done', now() - interval '100 days' + n * interval '1 second'
from generate_series(1, 2001) n;
insert into instances (project_id, id, order_id, position, name, server_id, state, origin)
select project_id, gen_random_uuid(), id, 0, 'x', id, 'active', 'launched' from orders;
create table saved as select * from retention_markers;
create function save() returns trigger language plpgsql as $$ begin insert into saved select new.*; return new; end $$;
create trigger save before insert on retention_markers for each row execute function save()`)
	store := postgres.Retention{DB: open(t, database), Config: kept}
	if done, err := store.DeleteUntil(t.Context(), time.Now().Add(time.Hour)); !done || err != nil {
		t.Errorf("done %t: %v", done, err)
	}
	got := testkit.Scalar[int](t, conn, `select count(*)::int from orders o
where exists (select from saved s where (o.updated_at, o.project_id, o.id) <= (s.updated_at, s.project_id, s.order_id))`)
	if left := testkit.Scalar[int](t, conn, "select count(*)::int from retention_markers"); got != 2000 || left != 0 {
		t.Errorf("the marker was after %d orders, and %d are left", got, left)
	}
}
