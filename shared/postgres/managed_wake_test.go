package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestManagedIsWoken: a change of a server that poll-instances stores makes its resource due, also while a replica
// works on the project. What tells nothing new, and changes of other servers, do not.
func TestManagedIsWoken(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	web, other := declare(t, store, newManaged("web")), declare(t, store, newManaged("other"))
	project, claim := claimProject(t, store)
	for _, m := range []domain.Managed{web, other} {
		member := newMember(m)
		if err := store.SaveMember(ctx, claim, "p1", member); err != nil {
			t.Fatal(err)
		}
		write(t, conn, `insert into instances (project_id, id, position, name, server_id, state, raw_status, origin)
values ('p1', $1, 0, $2, $3, 'active', 'ACTIVE', 'launched')`, member.ID, m.Name, member.ObjectID)
	}
	settle := func() (loaded []domain.Managed) {
		t.Helper()
		loaded, err := store.Load(ctx, "p1")
		if err != nil {
			t.Fatal(err)
		}
		for n := range loaded {
			loaded[n].NextAt = time.Time{}
			if err := store.SaveStatus(ctx, claim, &loaded[n]); err != nil {
				t.Fatal(err)
			}
		}
		return loaded
	}
	// due are the resources that are due, and whether the project is.
	due := func(what string, wantNames string, wantProject bool) {
		t.Helper()
		names := testkit.Scalar[string](t, conn,
			"select coalesce(string_agg(name, ' ' order by name), '') from managed where next_at <= now()")
		is, err := isDue(ctx, store.Queue(), 0)
		if err != nil || names != wantNames || is != wantProject {
			t.Errorf("%s: %q are due, the project %t: %v", what, names, is, err)
		}
	}
	settle()
	if err := store.ReleaseProject(ctx, claim, project, time.Hour); err != nil {
		t.Fatal(err)
	}
	due("all is settled", "", false)
	for _, change := range []string{
		"state = 'stopped', raw_status = 'SHUTOFF'", "state = 'deleted'", "name = 'theirs'", "nova_at = now()",
	} {
		write(t, conn, "update instances set "+change+" where name = 'web' or name = 'theirs'")
		due(change, "web", true)
		project, claim = claimProject(t, store)
		loaded := settle()
		due("it is looked at", "", false)
		write(t, conn, "update instances set nova_at = clock_timestamp() where name = 'web' or name = 'theirs'")
		for n := range loaded {
			loaded[n].Status = domain.ManagedDegraded
			if err := store.SaveStatus(ctx, claim, &loaded[n]); err != nil {
				t.Fatal(err)
			}
		}
		due("it changes in a round", "web", false)
		if err := store.ReleaseProject(ctx, claim, project, time.Hour); err != nil {
			t.Fatal(err)
		}
		due("the round ends", "web", true)
		project, claim = claimProject(t, store)
		settle()
		if err := store.ReleaseProject(ctx, claim, project, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	write(t, conn, "update instances set seen_at = now(), missed_at = now(), addresses = '[]', key_name = 'k'")
	write(t, conn, "update managed_members set status = 'deleting'")
	write(t, conn, "update instances set state = 'deleting' where name = 'other'")
	write(t, conn, `insert into instances (project_id, id, position, name, state, origin)
values ('p1', $1, 0, 'x', 'active', 'launched')`, uuid.New())
	write(t, conn, "update instances set state = 'stopped' where name = 'x'")
	due("nothing that matters", "", false)
}

// TestScanTime: the time of the next scan is written by a round that has scanned, unless one was requested since.
func TestScanTime(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	m := declare(t, store, newManaged("web"))
	hasScan := func(want bool) {
		t.Helper()
		if got := testkit.Scalar[bool](t, conn, "select scan_at <= now() from managed_projects"); got != want {
			t.Errorf("a scan is due: %t", got)
		}
	}
	round := func(scans bool, meanwhile func()) {
		t.Helper()
		write(t, conn, "update managed_projects set due_at = now()")
		project, claim := claimProject(t, store)
		if scans {
			project.NextScanAt = time.Now().Add(time.Hour)
		}
		meanwhile()
		if err := store.ReleaseProject(ctx, claim, project, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	round(false, func() {})
	hasScan(true)
	round(true, func() {
		renewed := newManaged("more")
		renewed.Delegation.New.ExpiresAt = time.Now().Add(9 * time.Hour)
		renewed.Delegation.Until = time.Now().Add(8 * time.Hour)
		declare(t, store, renewed)
	})
	if got, _ := store.Get(ctx, "p1", m.Kind, "web"); got.ConnectionID == m.ConnectionID {
		t.Error("its connection was not replaced")
	}
	hasScan(true)
	round(true, func() {})
	hasScan(false)
}
