package postgres_test

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDeclareSame: the same declaration makes no revision, whatever the order of its fields is, and has what failed
// tried again.
func TestDeclareSame(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store := postgres.Managed{DB: open(t, database)}
	made := newManaged("web")
	made.Spec = json.RawMessage(`{"flavor": "m1.tiny", "image": "cirros"}`)
	m := declare(t, store, made)
	project, claim := claimProject(t, store)
	failed := m
	failed.Status, failed.NextAt = domain.ManagedError, time.Now().Add(time.Hour)
	noError(t, store.SaveStatus(ctx, claim, &failed))
	noError(t, store.ReleaseProject(ctx, claim, project, time.Hour))
	m = declare(t, store, changed(m, `{"image": "cirros", "flavor": "m1.tiny"}`))
	if m.Revision != 1 || m.Version != 1 || m.NextAt.After(time.Now().Add(time.Minute)) {
		t.Errorf("it is %+v", m)
	}
	project, claim = claimProject(t, store)
	noError(t, store.ReleaseProject(ctx, claim, project, time.Hour))
	declare(t, store, changed(m, `{"image": "cirros", "flavor": "m1.tiny"}`))
	if due, err := isDue(ctx, store.Queue(), 0); err != nil || due {
		t.Errorf("it is due although nothing differs and nothing failed: %v", err)
	}
	auto := changed(m, string(m.Spec))
	auto.Repair = domain.RepairAuto
	if m = declare(t, store, auto); m.Revision != 1 || m.Version != 2 || m.Repair != domain.RepairAuto || m.Seq != 2 {
		t.Errorf("with another repair it is %+v", m)
	}
	secret := changed(m, string(m.Spec))
	secret.KeepSecrets, secret.Secrets, secret.Digest = false, []byte("other"), []byte("other")
	if m = declare(t, store, secret); m.Revision != 2 || string(m.Digest) != "other" {
		t.Errorf("with another secret it is %+v", m)
	}
}

// TestPruneRevisions: as many revisions are kept as the resource says, those that members have, and those since: a
// member may have something of each.
func TestPruneRevisions(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store := postgres.Managed{DB: open(t, database)}
	m := declare(t, store, newManaged("web"))
	numbers := func() (numbers []int) {
		t.Helper()
		found := must(store.Revisions(ctx, "p1", m.ID))(t)
		for _, r := range found {
			numbers = append(numbers, r.Number)
		}
		return numbers
	}
	for _, flavor := range []string{"b", "c", "d"} {
		m = declare(t, store, changed(m, `{"flavor": "`+flavor+`"}`))
	}
	if got := numbers(); !slices.Equal(got, []int{4, 3, 2}) {
		t.Errorf("kept are %v", got)
	}
	project, claim := claimProject(t, store)
	member := newMember(m)
	member.Revision = 2
	noError(t, store.SaveMember(ctx, claim, "p1", member))
	noError(t, store.ReleaseProject(ctx, claim, project, 0))
	m = declare(t, store, changed(m, `{"flavor": "e"}`))
	m = declare(t, store, changed(m, `{"flavor": "f"}`))
	if got := numbers(); !slices.Equal(got, []int{6, 5, 4, 3, 2}) {
		t.Errorf("kept are %v", got)
	}
	loaded, err := store.Load(ctx, "p1")
	if err != nil || !slices.Equal(slices.Sorted(maps.Keys(loaded[0].Made)), []int{2, 3, 4, 5}) {
		t.Errorf("loaded are %+v: %v", loaded, err)
	}
	gone := changed(m, "{}")
	gone.Repeats = 1
	wantCode(t, "rolled back to a revision that was pruned", errOf2(store.Declare(ctx, gone)), apperr.NotFound)
	_, claim = claimProject(t, store)
	member.Revision, m.ObservedRevision = 6, 6
	noError(t, store.SaveMember(ctx, claim, "p1", member))
	noError(t, store.SaveStatus(ctx, claim, &m))
	if got := numbers(); !slices.Equal(got, []int{6, 5, 4}) {
		t.Errorf("kept are %v", got)
	}
}

// TestDeclaredDuringRound: declarations during a round keep the revision that the round has loaded, and records. It is
// deleted when a round finds the current one real. A member with a revision that was pruned cannot be stored.
func TestDeclaredDuringRound(t *testing.T) {
	t.Parallel()
	ctx, store := t.Context(), postgres.Managed{DB: open(t, testkit.Database(t))}
	made := newManaged("web")
	made.MaxRevisions = 1
	m := declare(t, store, made)
	_, claim := claimProject(t, store)
	member := newMember(m)
	noError(t, store.SaveMember(ctx, claim, "p1", member))
	m = declare(t, store, changed(m, `{"flavor": "b"}`)) // the round loads this one
	m = declare(t, store, changed(m, `{"flavor": "c"}`))
	m = declare(t, store, changed(m, `{"flavor": "d"}`))
	member.Revision, member.WasReady, member.UserData, member.IsRebuilt = 2, true, "digest", true
	member.CreateCalls = 2
	if err := store.SaveMember(ctx, claim, "p1", member); err != nil {
		t.Fatalf("the round cannot record the revision that it has loaded: %v", err)
	}
	loaded, err := store.Load(ctx, "p1")
	if err != nil || !strings.Contains(string(loaded[0].Made[2].Spec), `"b"`) || !loaded[0].Members[0].WasReady ||
		loaded[0].Members[0].UserData != "digest" || !loaded[0].Members[0].IsRebuilt ||
		loaded[0].Members[0].CreateCalls != 2 {
		t.Fatalf("loaded %+v: %v", loaded, err)
	}
	member.Revision = 4
	noError(t, store.SaveMember(ctx, claim, "p1", member))
	l := &loaded[0]
	l.ObservedRevision, l.Status = 4, domain.ManagedReady
	noError(t, store.SaveStatus(ctx, claim, l))
	if left, err := store.Revisions(ctx, "p1", m.ID); err != nil || len(left) != 1 {
		t.Errorf("the revisions %+v are left: %v", left, err)
	}
	for _, unknown := range []int{2, 9} {
		member.Revision = unknown
		if err := store.SaveMember(ctx, claim, "p1", member); !errors.Is(err, domain.ErrChanged) {
			t.Errorf("a member of revision %d, which does not exist: %v", unknown, err)
		}
	}
}

// TestDeclaredAgainDuringRound: a declaration or deletion has what failed tried again, and a round that is running
// writes none of its failures over that: not when it saves later, and not when it saves while the declaration is being
// stored.
func TestDeclaredAgainDuringRound(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	m := declare(t, store, newManaged("web"))
	_, claim := claimProject(t, store)
	fails := func(member domain.Member) domain.Member {
		t.Helper()
		member.Attempts, member.Writes, member.Status = member.Attempts+2, 2, domain.MemberError
		member.RetryAt = time.Now().Add(time.Hour)
		noError(t, store.SaveMember(ctx, claim, "p1", member))
		return member
	}
	has := func(what string, attempts, writes int) domain.Member {
		t.Helper()
		loaded := must(store.Load(ctx, "p1"))(t)
		got := loaded[0].Members[0]
		if got.Attempts != attempts || got.Writes != writes || got.RetryAt.IsZero() != (attempts == 0) ||
			got.Status != domain.MemberError {
			t.Errorf("%s: it is %+v, want %d attempts and %d writes", what, got, attempts, writes)
		}
		return got
	}
	fails(newMember(m))
	member := has("it fails", 2, 2)
	m = declare(t, store, changed(m, string(m.Spec)))
	fails(member)
	has("the same is declared meanwhile", 0, 0)
	member = fails(has("the next round", 0, 0))
	m = declare(t, store, changed(m, `{"flavor": "b"}`))
	fails(member)
	member = has("another flavor is declared meanwhile", 0, 0)

	tx, err := conn.Begin(ctx) // as a declaration does
	if err != nil {
		t.Fatal(err)
	}
	must(tx.Exec(ctx, "update managed_projects set domain_id = domain_id"))(t)
	saved, watch := make(chan error, 1), testkit.Connect(t, database)
	member.Attempts, member.RetryAt = 3, time.Now().Add(time.Hour)
	go func() { saved <- store.SaveMember(ctx, claim, "p1", member) }()
	testkit.Eventually(t, 10*time.Second, "the round waits for the declaration", func() bool {
		return testkit.Scalar[bool](t, watch, "select exists (select from pg_stat_activity "+
			"where datname = current_database() and wait_event_type = 'Lock')")
	})
	_, err = tx.Exec(ctx, "update managed set declarations = declarations + 1")
	noError(t, errors.Join(err, tx.Commit(ctx), <-saved))
	member = fails(has("it saves while a declaration is stored", 0, 0))
	must(store.Delete(ctx, m, nil))(t)
	fails(member)
	has("it is deleted meanwhile", 0, 0)
}

// TestManagedDelegations: a user has one connection, unless his roles differ, and it ends with its last resource.
func TestManagedDelegations(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	status := func(id uuid.UUID) string {
		return testkit.Scalar[string](t, conn, "select status from connections where id = $1", id)
	}
	a := declare(t, store, newManaged("a"))
	soon := time.Now().Add(time.Hour)
	if found, ok, err := store.Delegation(ctx, "p1", "u1", []string{"member"}, soon); err != nil || !ok ||
		found.ID != a.ConnectionID {
		t.Errorf("found %v: %+v, %v", ok, found, err)
	}
	for name, query := range map[string]struct {
		project, user string
		roles         []string
		until         time.Time
	}{
		"another project": {"p2", "u1", []string{"member"}, soon},
		"another user":    {"p1", "u2", []string{"member"}, soon},
		"other roles":     {"p1", "u1", []string{"x"}, soon},
		"more roles":      {"p1", "u1", []string{"member", "x"}, soon},
		"too short":       {"p1", "u1", []string{"member"}, soon.Add(2 * time.Hour)},
	} {
		if _, ok, err := store.Delegation(ctx, query.project, query.user, query.roles, query.until); err != nil || ok {
			t.Errorf("%s: found %v, %v", name, ok, err)
		}
	}
	// Keystone says with which roles it is accepted, and those that they imply: it is found as before
	checks := postgres.Delegations(store)
	noError(t, checks.MarkChecked(ctx, "p1", a.ConnectionID, time.Now(), []string{"member", "reader"}))
	if _, ok, err := store.Delegation(ctx, "p1", "u1", []string{"member"}, soon); err != nil || !ok {
		t.Errorf("after a check: found %v, %v", ok, err)
	}
	// another user takes a over: what the first one has delegated has no resource any more
	taken := changed(a, string(a.Spec))
	taken.UserID, taken.Delegation = "u2", domain.ManagedDelegation{New: newDelegation("u2", "member")}
	b := declare(t, store, taken)
	if b.Revision != 1 || b.UserID != "u2" || status(a.ConnectionID) != "deleted" ||
		status(b.ConnectionID) != "active" {
		t.Errorf("declared by another user it is %+v", b)
	}
	// a longer one replaces that of all resources of the user
	longer := newManaged("c")
	longer.UserID = "u2"
	longer.Delegation = domain.ManagedDelegation{
		New: newDelegation("u2", "member"), Kinds: domain.Kinds(), Until: time.Now().Add(long * 999),
	}
	c := declare(t, store, longer)
	b, err := store.Get(ctx, "p1", b.Kind, b.Name)
	if err != nil || b.ConnectionID != c.ConnectionID {
		t.Errorf("b has %s, c has %s: %v", b.ConnectionID, c.ConnectionID, err)
	}
	if all, err := store.Connections(ctx, "p1"); err != nil || len(all) != 2 || all[b.ID] != all[c.ID] ||
		all[c.ID].ID != c.ConnectionID || all[c.ID].DelegationID == "" {
		t.Errorf("the connections are %+v, %v", all, err)
	}
	// one with more roles replaces that of the kinds that require them, and no others
	rich := newManaged("d")
	rich.UserID, rich.Kind, rich.Provider = "u2", domain.KindVolume, "cinder"
	rich.Delegation = domain.ManagedDelegation{New: newDelegation("u2", "member"), Until: soon}
	poor := declare(t, store, rich)
	rich.ID, rich.Name = uuid.Must(uuid.NewV7()), "e"
	rich.Delegation = domain.ManagedDelegation{
		New: newDelegation("u2", "member", "storage"), Kinds: []domain.Kind{domain.KindVolume}, Until: soon,
	}
	e := declare(t, store, rich)
	for name, want := range map[string]uuid.UUID{poor.Name: e.ConnectionID, e.Name: rich.Delegation.New.ID} {
		if m, err := store.Get(ctx, "p1", domain.KindVolume, name); err != nil || m.ConnectionID != want {
			t.Errorf("%s has %s, want %s: %v", name, m.ConnectionID, want, err)
		}
	}
	if poor.ConnectionID != c.ConnectionID {
		t.Errorf("d had %s, c has %s", poor.ConnectionID, c.ConnectionID)
	}
	if still, err := store.Get(ctx, "p1", c.Kind, c.Name); err != nil || still.ConnectionID != c.ConnectionID {
		t.Errorf("c has %s, want %s: %v", still.ConnectionID, c.ConnectionID, err)
	}
	// one that has ended cannot be used
	must(postgres.Connections(store).End(ctx, "p1", c.ConnectionID, domain.ConnectionLost, "gone",
		true))(t)
	if _, _, err := store.Declare(ctx, changed(c, `{}`)); !errors.Is(err, domain.ErrChanged) {
		t.Errorf("declared with a connection that has ended: %v", err)
	}
	c.UserID = "u3"
	by := domain.ManagedDelegation{New: newDelegation("u3", "member")}
	if c, err = store.Delete(ctx, c, &by); err != nil || c.ConnectionID != by.New.ID || c.UserID != "u3" {
		t.Fatalf("deleting is %+v, %v", c, err)
	}
	_, claim := claimProject(t, store)
	if err := store.Remove(ctx, claim, c); err != nil || status(by.New.ID) != "deleted" {
		t.Errorf("the connection is %s: %v", status(by.New.ID), err)
	}
}

// TestListManaged pages, and selects by kind, labels, name and status.
func TestListManaged(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store := postgres.Managed{DB: open(t, database)}
	for _, name := range []string{"web-1", "web-2", "db"} {
		made := newManaged(name)
		if name == "db" {
			made.Kind, made.Provider, made.Labels = domain.KindVolume, "cinder", map[string]string{"app": "db", "a": "b"}
		}
		declare(t, store, made)
	}
	for _, row := range []struct {
		q    domain.ManagedQuery
		want []string
	}{
		{domain.ManagedQuery{}, []string{"web-1", "web-2", "db"}},
		{domain.ManagedQuery{Kind: domain.KindVolume}, []string{"db"}},
		{domain.ManagedQuery{Labels: map[string]string{"app": "shop"}}, []string{"web-1", "web-2"}},
		{domain.ManagedQuery{Labels: map[string]string{"app": "db", "a": "c"}}, nil},
		{domain.ManagedQuery{Name: "EB-2"}, []string{"web-2"}},
		{domain.ManagedQuery{Statuses: []domain.ManagedStatus{domain.ManagedReady}}, nil},
	} {
		row.q.Limit = 2
		var got []string
		for {
			page := must(store.List(ctx, "p1", row.q))(t)
			for _, m := range page {
				got = append(got, m.Name)
			}
			if len(page) < row.q.Limit {
				break
			}
			row.q.Marker = page[len(page)-1].ID
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%+v lists %v, want %v", row.q, got, row.want)
		}
	}
	if other, err := store.List(ctx, "p2", domain.ManagedQuery{Limit: 5}); err != nil || len(other) != 0 {
		t.Errorf("another project lists %+v, %v", other, err)
	}
}

// TestResourceFlavors creates, changes, lists and deletes templates.
func TestResourceFlavors(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store := postgres.ResourceFlavors{DB: open(t, database)}
	made := domain.ResourceFlavor{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", DomainID: "d1", UserID: "u1", Name: "small",
		Kind: domain.KindMachine, Provider: "nova", Spec: json.RawMessage(`{"flavor": "m1.tiny"}`),
	}
	f, err := store.Create(ctx, made, 0)
	if err != nil || f.Version != 1 || f.ID != made.ID {
		t.Fatalf("created %+v, %v", f, err)
	}
	made.ID = uuid.Must(uuid.NewV7())
	wantCode(t, "created twice", errOf(store.Create(ctx, made, 0)), apperr.Conflict)
	if f, err = store.Change(ctx, f); err != nil || f.Version != 1 {
		t.Errorf("changed to the same: %+v, %v", f, err)
	}
	f.Description = "for tests"
	after, err := store.Change(ctx, f)
	if err != nil || after.Version != 2 || after.Description != "for tests" {
		t.Errorf("changed %+v, %v", after, err)
	}
	_, err = store.Change(ctx, f)
	if !errors.Is(err, domain.ErrChanged) || strings.Contains(err.Error(), "connection") {
		t.Errorf("changed an older version: %v", err)
	}
	made.ID, made.Name, made.Kind = uuid.Must(uuid.NewV7()), "disk", domain.KindVolume
	if _, err = store.Create(ctx, made, 0); err != nil {
		t.Fatal(err)
	}
	page, err := store.List(ctx, "p1", domain.FlavorQuery{Limit: 5})
	if err != nil || len(page) != 2 || page[0].Name != "disk" {
		t.Errorf("listed %+v, %v", page, err)
	}
	if page, err = store.List(ctx, "p1", domain.FlavorQuery{Kind: domain.KindMachine, Limit: 5}); err != nil ||
		len(page) != 1 {
		t.Errorf("listed %+v, %v", page, err)
	}
	wantCode(t, "another project gets it", errOf(store.Get(ctx, "p2", "small")), apperr.NotFound)
	wantError(t, "deleted an older version", store.Delete(ctx, f), domain.ErrChanged)
	noError(t, store.Delete(ctx, after))
}
