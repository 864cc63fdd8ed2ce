package postgres_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// newManaged declares a server of p1 in the name of u1, with a new delegation.
func newManaged(name string) domain.NewManaged {
	return domain.NewManaged{
		Managed: domain.Managed{
			ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", DomainID: "d1", UserID: "u1", Kind: domain.KindMachine,
			Name: name, Provider: "nova", Labels: map[string]string{"app": "shop"}, Repair: domain.RepairManual,
			MaxRevisions: 3, Spec: json.RawMessage(`{"flavor": "m1.tiny"}`), Secrets: []byte("sealed"),
			Digest: []byte("digest"), Actor: &domain.Actor{UserID: "u1", ProjectID: "p1"},
		},
		Delegation: domain.ManagedDelegation{
			New: newDelegation("u1", "member"), Until: time.Now().Add(time.Hour),
			Kinds: []domain.Kind{domain.KindMachine, domain.KindDeployment},
		},
	}
}

// newDelegation is a connection for managed resources with some roles.
func newDelegation(userID string, roles ...string) *domain.Connection {
	c := newConnection()
	c.Kind, c.Secret, c.AuthURL, c.Region, c.Managed = domain.TrustConnection, nil, "", "", true
	c.UserID, c.ActsAs.UserID, c.ActsAs.Roles = userID, userID, roles
	c.DelegationID, c.ExpiresAt = c.ID.String(), time.Now().Add(2*time.Hour)
	return &c
}

// declare stores a declaration that must be accepted.
func declare(t *testing.T, store postgres.Managed, made domain.NewManaged) domain.Managed {
	t.Helper()
	stored, _ := must2(store.Declare(t.Context(), made))(t)
	return stored
}

// changed is a declaration of what is stored, with another spec.
func changed(stored domain.Managed, spec string) domain.NewManaged {
	made := domain.NewManaged{
		Managed: stored, Before: stored.Version, KeepSecrets: true,
		Delegation: domain.ManagedDelegation{ConnectionID: stored.ConnectionID},
	}
	made.Spec = json.RawMessage(spec)
	return made
}

// claimProject claims the only due project.
func claimProject(t *testing.T, store postgres.Managed) (domain.ManagedProject, domain.Claim) {
	t.Helper()
	due, claim, err := take(t.Context(), store.Queue(), long, 10)
	if err != nil || len(due) != 1 || !claim.Acquired {
		t.Fatalf("claimed %d projects: %v", len(due), err)
	}
	return due[0], claim
}

// newMember is a server of a resource.
func newMember(m domain.Managed) domain.Member {
	return domain.Member{
		ID: uuid.Must(uuid.NewV7()), ManagedID: m.ID, Revision: m.Revision, ObjectID: "s-" + m.Name,
		Status: domain.MemberReady, Declarations: m.Declarations,
	}
}

// TestManagedLife declares a server, makes it as reconcile-managed does, changes it, rolls it back and deletes it.
func TestManagedLife(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	made := newManaged("web")
	m, created, err := store.Declare(domain.WithActor(ctx, domain.ActorOf(domain.Identity{UserName: "joe"}, uuid.Nil)),
		made)
	if err != nil || !created || m.Revision != 1 || m.Status != domain.ManagedPending || m.DomainID != "d1" ||
		m.Request != domain.ManagedCreate || m.ConnectionID != made.Delegation.New.ID || string(m.Digest) != "digest" {
		t.Fatalf("created %v: %+v, %v", created, m, err)
	}
	if c, err := postgres.Connections(store).Get(ctx, delegator, m.ConnectionID); err != nil || !c.Managed ||
		c.Usable(delegator) {
		t.Errorf("the connection of a managed resource is shown as %+v: %v", c, err)
	}
	if made, err := store.Revisions(ctx, "p1", m.ID); err != nil || len(made) != 1 || made[0].UserName != "joe" {
		t.Errorf("it was declared by %+v: %v", made, err)
	}
	project, claim := claimProject(t, store)
	loaded, err := store.Load(ctx, "p1")
	if err != nil || len(loaded) != 1 || string(loaded[0].Secrets) != "sealed" {
		t.Fatalf("loaded %+v, %v", loaded, err)
	}
	l := &loaded[0]
	member := newMember(*l)
	for _, missed := range []time.Time{{}, time.Now().Truncate(time.Microsecond)} {
		member.MissedAt = missed
		noError(t, store.SaveMember(ctx, claim, "p1", member))
	}
	l.Request, l.Status, l.ObservedRevision = "", domain.ManagedReady, 1
	l.Conditions = domain.SetCondition(nil, domain.Condition{Type: domain.ConditionReady, Status: "True"}, time.Now())
	for range 2 { // the second time nothing differs
		if err := store.SaveStatus(ctx, claim, l); err != nil || l.Seq != 2 {
			t.Fatalf("saved with seq %d: %v", l.Seq, err)
		}
	}
	noError(t, store.ReleaseProject(ctx, claim, project, time.Minute))
	if due, err := isDue(ctx, store.Queue(), 50*time.Second); err != nil || due {
		t.Errorf("it is due immediately: %v", err)
	}
	noError(t, store.RecordNodes(ctx, map[string]string{"s-web": "compute-1", "other": "compute-2"}))
	if m, err = store.Get(ctx, "p1", m.Kind, "web"); err != nil || len(m.Members) != 1 ||
		m.Members[0].Node != "compute-1" || !m.Members[0].MissedAt.Equal(member.MissedAt) || m.Version != 1 ||
		m.Secrets != nil {
		t.Fatalf("it is %+v, %v", m, err)
	}
	m = declare(t, store, changed(m, `{"flavor": "m1.small"}`))
	if m.Revision != 2 || m.Request != domain.ManagedUpdate || m.Status != domain.ManagedUpdating || m.Version != 2 {
		t.Errorf("changed is %+v", m)
	}
	project, claim = claimProject(t, store)
	if loaded, err = store.Load(ctx, "p1"); err != nil || string(loaded[0].Secrets) != "sealed" ||
		!strings.Contains(string(loaded[0].Made[1].Spec), "m1.tiny") || len(loaded[0].Members) != 1 {
		t.Errorf("loaded %+v, %v", loaded, err)
	}
	back := changed(m, `{}`)
	back.Repeats = 1
	if m = declare(t, store, back); m.Revision != 3 || !strings.Contains(string(m.Spec), "m1.tiny") {
		t.Errorf("rolled back is %+v", m)
	}
	if m, err = store.Delete(ctx, m, nil); err != nil || m.Status != domain.ManagedDeleting {
		t.Fatalf("deleting is %+v, %v", m, err)
	}
	if _, _, err = store.Declare(ctx, changed(m, `{}`)); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("declared while it is deleted: %v", err)
	}
	wantError(t, "saved what was loaded before", store.SaveStatus(ctx, claim, &loaded[0]), domain.ErrChanged)
	noError(t, store.ReleaseProject(ctx, claim, project, time.Minute))
	project, claim = claimProject(t, store) // immediately, because something came meanwhile
	noError(t, store.DeleteMember(ctx, claim, "p1", member.ID))
	noError(t, store.Remove(ctx, claim, m))
	noError(t, store.ReleaseProject(ctx, claim, project, time.Minute))
	wantValue(t, conn, 0, "%d rows are left", `select (select count(*) from managed_projects)::int
+ (select count(*) from managed_revisions)::int + (select count(*) from managed_members)::int
+ (select count(*) from connections where status = 'active')::int`)
	events := testkit.Scalar[[]string](t, conn, `select array_agg(seq || ' ' || (data->>'status') || ' ' ||
coalesce(data->>'previous_status', '') || ' ' || (data->>'revision') order by seq) from events where subject = $1`,
		m.ID.String())
	if want := []string{
		"1 pending  1", "2 ready pending 1", "3 updating ready 2", "4 updating updating 3", "5 deleting updating 3",
		"6 deleted deleting 3",
	}; !slices.Equal(events, want) {
		t.Errorf("its events are %q", events)
	}
}

// TestManagedFencing: a replica whose claim another replica has acquired writes nothing.
func TestManagedFencing(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	m := declare(t, store, newManaged("web"))
	first, err := store.Queue().Claim(ctx, long, 10, nil)
	if err != nil || len(first.Rows) != 1 {
		t.Fatal(first, err)
	}
	project, old := first.Rows[0].Value, first.Claim
	write(t, conn, "update managed_projects set claimed_until = now() - interval '1 second', due_at = now()")
	second, err := store.Queue().Claim(ctx, long, 10, nil)
	if err != nil || len(second.Rows) != 1 {
		t.Fatal(second, err)
	}
	claim := second.Claim
	member := newMember(m)
	noError(t, store.SaveMember(ctx, claim, "p1", member))
	member.ObjectID, m.Status = "other", domain.ManagedError
	before := testkit.Dump(t, database)
	for name, err := range map[string]error{
		"save member":   store.SaveMember(ctx, old, "p1", member),
		"delete member": store.DeleteMember(ctx, old, "p1", member.ID),
		"save status":   store.SaveStatus(ctx, old, &m),
		"remove":        store.Remove(ctx, old, m),
		"renew":         first.Rows[0].Renew(ctx),
		"release":       store.ReleaseProject(ctx, old, project, 0),
	} {
		if !errors.Is(err, domain.ErrFenced) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := testkit.Dump(t, database); after != before {
		t.Error("the replica without the claim has written something")
	}
	wantError(t, "removed what no one deletes", store.Remove(ctx, claim, m), domain.ErrChanged)
	noError(t, second.Rows[0].Renew(ctx))
}

// TestClaimProjects: replicas that claim concurrently get different projects, and the claim of a dead one expires.
func TestClaimProjects(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store := postgres.Managed{DB: open(t, database)}
	for n := range 12 {
		made := newManaged("web")
		made.ProjectID = fmt.Sprintf("p%02d", n)
		made.Delegation.New.ProjectID = made.ProjectID
		declare(t, store, made)
	}
	var mu sync.Mutex
	var got []string
	concurrently(4, func(int) {
		for {
			found, claim, err := take(ctx, store.Queue(), time.Second, 2)
			if err != nil || !claim.Acquired {
				if err != nil {
					t.Error(err)
				}
				return
			}
			mu.Lock()
			for _, p := range found {
				got = append(got, p.ProjectID)
			}
			mu.Unlock()
		}
	})
	if slices.Sort(got); len(got) != 12 || len(slices.Compact(got)) != 12 {
		t.Errorf("claimed %v", got)
	}
	ended := 0
	testkit.Eventually(t, 5*time.Second, "the claims of dead replicas end", func() bool {
		found, _, err := take(ctx, store.Queue(), long, 20)
		ended += len(found)
		return err == nil && ended == 12
	})
}

// TestDeclareConcurrently: of writers that have read the same version one stores a revision, and the others get
// ErrChanged.
func TestDeclareConcurrently(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	store, conn := postgres.Managed{DB: open(t, database)}, testkit.Connect(t, database)
	race := func(makes func(n int) domain.NewManaged) (stored []domain.Managed) {
		var mu sync.Mutex
		concurrently(8, func(n int) {
			m, _, err := store.Declare(ctx, makes(n))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				stored = append(stored, m)
			} else if !errors.Is(err, domain.ErrChanged) {
				t.Error(err)
			}
		})
		return stored
	}
	first := race(func(int) domain.NewManaged { return newManaged("web") })
	if len(first) != 1 {
		t.Fatalf("%d writers have created it", len(first))
	}
	second := race(func(n int) domain.NewManaged {
		return changed(first[0], fmt.Sprintf(`{"flavor": "m%d"}`, n))
	})
	if len(second) != 1 || second[0].Revision != 2 {
		t.Errorf("%d writers have changed it", len(second))
	}
	names := race(func(n int) domain.NewManaged { return newManaged(fmt.Sprintf("web-%d", n)) })
	if active := testkit.Scalar[int](t, conn, "select count(*)::int from connections"); len(names) != 8 || active != 1 {
		t.Errorf("%d resources of one user have %d connections", len(names)+1, active)
	}
}
