package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestGrantsOfManaged: functions that serve HTTP declare, change and delete resources; reconcile-managed does the rest.
func TestGrantsOfManaged(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	web, events := as(t, database, "cloudfn_functions"), as(t, database, "cloudfn_events")
	users, runner := postgres.Managed{DB: web}, postgres.Managed{DB: events}
	allowed := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	testkit.AddCallback(t, testkit.Connect(t, database), "p1", "https://a.example", domain.CallbackVerified, "whsec_x", "")
	m, _, err := users.Declare(ctx, newManaged("web"))
	allowed("declare", err)
	_, _, err = users.Delegation(ctx, "p1", "u1", []string{"member"}, time.Now())
	allowed("delegation", err)
	_, err = users.IsDelegated(ctx, "p1", m.ConnectionID)
	allowed("is delegated", err)
	_, err = users.List(ctx, "p1", domain.ManagedQuery{Limit: 1})
	allowed("list", err)
	_, err = users.Revisions(ctx, "p1", m.ID)
	allowed("revisions", err)
	m, _, err = users.Declare(ctx, changed(m, `{"flavor": "m1.small"}`))
	allowed("change", err)
	taken := changed(m, string(m.Spec))
	taken.UserID, taken.Delegation = "u2", domain.ManagedDelegation{New: newDelegation("u2", "member")}
	m, _, err = users.Declare(ctx, taken)
	allowed("declare by another user", err)

	claimed, err := runner.Queue().Claim(ctx, long, 1, nil)
	allowed("claim", err)
	project, claim := claimed.Rows[0].Value, claimed.Claim
	_, err = isDue(ctx, runner.Queue(), time.Second)
	allowed("is due", err)
	allowed("renew", claimed.Rows[0].Renew(ctx))
	_, err = runner.Load(ctx, "p1")
	allowed("load", err)
	_, err = runner.Connections(ctx, "p1")
	allowed("connections", err)
	member := newMember(m)
	allowed("save a member", runner.SaveMember(ctx, claim, "p1", member))
	allowed("record nodes", runner.RecordNodes(ctx, map[string]string{member.ObjectID: "compute-1"}))
	m.Status, m.ObservedRevision = domain.ManagedReady, m.Revision
	allowed("save a status", runner.SaveStatus(ctx, claim, &m))
	m, err = users.Delete(ctx, m, nil)
	allowed("delete", err)
	allowed("delete a member", runner.DeleteMember(ctx, claim, "p1", member.ID))
	allowed("remove", runner.Remove(ctx, claim, m))
	allowed("release", runner.ReleaseProject(ctx, claim, project, time.Minute))

	flavors := postgres.ResourceFlavors{DB: web}
	f, err := flavors.Create(ctx, domain.ResourceFlavor{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", Name: "small", Kind: domain.KindMachine, Spec: []byte("{}"),
	}, 0)
	allowed("create a flavor", err)
	f.Description = "x"
	f, err = flavors.Change(ctx, f)
	allowed("change a flavor", err)
	allowed("delete a flavor", flavors.Delete(ctx, f))
}
