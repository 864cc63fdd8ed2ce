package postgres_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSaveStatuses writes more resources than a statement takes. Only those that differ are written, with an event for
// each new status; what its user has changed meanwhile stays as it is, and does not keep the others.
func TestSaveStatuses(t *testing.T) {
	t.Parallel()
	const count = 1201 // of three statements
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	declare(t, store, newManaged("web-0"))
	write(t, conn, `insert into managed (project_id, id, kind, name, user_id, connection_id, provider, repair,
  max_revisions, revision, request, status)
select project_id, gen_random_uuid(), kind, 'web-' || n, user_id, connection_id, provider, repair, 1, 2, request, status
from managed, generate_series(1, $1) n`, count-1)
	write(t, conn, `insert into managed_revisions (project_id, managed_id, number, spec, user_id)
select project_id, id, number, '{}', user_id from managed, generate_series(1, 2) number where name <> 'web-0'`)
	_, claim := claimProject(t, store)
	loaded, err := store.Load(ctx, "p1")
	if err != nil || len(loaded) != count {
		t.Fatalf("loaded %d: %v", len(loaded), err)
	}
	all := make([]*domain.Managed, count)
	for n := range loaded {
		all[n] = &loaded[n]
	}
	// written are the rows that a call writes, and the events.
	written := func(what string, want error, rows, events int) {
		t.Helper()
		const rowsSQL = "select coalesce(array_agg(xmin::text || ' ' || ctid::text order by id), '{}') from managed"
		before := testkit.Scalar[[]string](t, conn, rowsSQL)
		wrote := testkit.Scalar[int](t, conn, "select count(*)::int from events")
		if err := store.SaveStatus(ctx, claim, all...); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
		n := 0
		for at, row := range testkit.Scalar[[]string](t, conn, rowsSQL) {
			if row != before[at] {
				n++
			}
		}
		if n != rows {
			t.Errorf("%s: %d rows are written, want %d", what, n, rows)
		}
		if n := testkit.Scalar[int](t, conn, "select count(*)::int from events") - wrote; n != events {
			t.Errorf("%s: %d events, want %d", what, n, events)
		}
	}
	written("as loaded", nil, 0, 0)
	for _, m := range all {
		m.Request, m.Status, m.ObservedRevision = "", domain.ManagedReady, m.Revision
	}
	written("all are ready", nil, count, count)
	if seq, is := testkit.Scalar[int](t, conn, "select min(seq)::int from managed"), int(all[count-1].Seq); seq != 2 ||
		is != 2 {
		t.Errorf("the seq is %d, and %d of what was given", seq, is)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from managed_revisions"); n != count {
		t.Errorf("%d revisions are kept, want those that are current: %d", n, count)
	}
	written("the same again", nil, 0, 0)

	web := must(store.Get(ctx, "p1", domain.KindMachine, "web-0"))(t)
	declare(t, store, changed(web, `{"flavor": "m1.small"}`))
	// web-0 is the first
	slices.SortFunc(all, func(a, b *domain.Managed) int { return strings.Compare(a.Name, b.Name) })
	for _, m := range all[:3] {
		m.Drift = []domain.Drift{{Field: "flavor", Declared: "m1.tiny", Actual: "m1.small"}}
	}
	all[1].NextAt = time.Now().Add(time.Hour)
	written("one has a new revision", domain.ErrChanged, 2, 0)
	if err := store.SaveStatus(ctx, claim); err != nil {
		t.Errorf("none: %v", err)
	}
}

// TestUnexpectedObjects: an object without a member is one event when it was found twice. One that a deletion has left
// as an orphan is not reported.
func TestUnexpectedObjects(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	m := declare(t, store, newManaged("web"))
	_, claim := claimProject(t, store)
	noError(t, store.SaveMember(ctx, claim, "p1", newMember(m)))
	m.Orphan = true
	m, err := store.Delete(ctx, m, nil)
	if err == nil {
		err = store.Remove(ctx, claim, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	found := []domain.UnexpectedObject{
		{ObjectID: "s-web", Name: "web", Provider: "nova"}, {ObjectID: "twin", Name: "web", Provider: "nova"},
	}
	save := func(after time.Duration, want ...string) {
		t.Helper()
		reported, err := store.SaveUnexpected(ctx, claim, "p1", found, after)
		if err != nil || !slices.Equal(reported, want) {
			t.Errorf("reported are %q, want %q: %v", reported, want, err)
		}
	}
	save(0)
	save(time.Hour)
	save(0, "twin")
	save(time.Hour, "twin")
	events := testkit.Scalar[[]string](t, conn, `select array_agg(subject || ' ' || data) from events
where type = 'cloudfn.managed.unexpected_object.v1'`)
	const want = `twin {"name": "web", "provider": "nova", "object_id": "twin"}`
	if !slices.Equal(events, []string{want}) {
		t.Errorf("the events are %q, want %q", events, want)
	}
	forget := func(what string, after time.Duration, region string, seen []string, want ...string) {
		t.Helper()
		listed := []domain.UnexpectedObject{{Provider: "nova", Region: region}, {Provider: "cinder"}}
		err := store.ForgetUnexpected(ctx, claim, "p1", listed, seen, after)
		left := testkit.Scalar[[]string](t, conn, "select array_agg(object_id order by object_id) from unexpected_objects")
		if err != nil || !slices.Equal(left, want) {
			t.Errorf("%s: recorded are %q, want %q: %v", what, left, want, err)
		}
	}
	both := []string{"s-web", "twin"}
	forget("missed once", 0, "", []string{"s-web"}, both...)
	forget("found again", 0, "", both, both...)
	forget("missed again", 0, "", []string{"s-web"}, both...)
	forget("not for long", time.Hour, "", []string{"s-web"}, both...)
	forget("not listed", 0, "other", []string{"s-web"}, both...)
	forget("missed for long", 0, "", []string{"s-web"}, "s-web")
	save(0)
	save(0, "twin")
	wantValue(t, conn, 2, "there are %d events of an object that has come back", `select count(*)::int from events
where type = 'cloudfn.managed.unexpected_object.v1' and subject = 'twin'`)
	claim = domain.NewClaim() // another replica has the project
	save(0)
	if err := store.ForgetUnexpected(ctx, claim, "p1", nil, nil, 0); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("it is deleted without a claim: %v", err)
	}
}

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
		noError(t, store.SaveMember(ctx, claim, "p1", member))
		write(t, conn, `insert into instances (project_id, id, position, name, server_id, state, raw_status, origin)
values ('p1', $1, 0, $2, $3, 'active', 'ACTIVE', 'launched')`, member.ID, m.Name, member.ObjectID)
	}
	settle := func() []domain.Managed {
		t.Helper()
		loaded := must(store.Load(ctx, "p1"))(t)
		for n := range loaded {
			loaded[n].NextAt = time.Time{}
			noError(t, store.SaveStatus(ctx, claim, &loaded[n]))
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
	noError(t, store.ReleaseProject(ctx, claim, project, time.Hour))
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
			noError(t, store.SaveStatus(ctx, claim, &loaded[n]))
		}
		due("it changes in a round", "web", false)
		noError(t, store.ReleaseProject(ctx, claim, project, time.Hour))
		due("the round ends", "web", true)
		project, claim = claimProject(t, store)
		settle()
		noError(t, store.ReleaseProject(ctx, claim, project, time.Hour))
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
		wantValue(t, conn, want, "a scan is due: %t", "select scan_at <= now() from managed_projects")
	}
	round := func(scans bool, meanwhile func()) {
		t.Helper()
		write(t, conn, "update managed_projects set due_at = now()")
		project, claim := claimProject(t, store)
		if scans {
			project.NextScanAt = time.Now().Add(time.Hour)
		}
		meanwhile()
		noError(t, store.ReleaseProject(ctx, claim, project, time.Minute))
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
