package postgres_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestGrantsOfConnections, the HTTP functions' and the event functions', but not read a sealed secret that is
// none of theirs.
func TestGrantsOfConnections(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	allowed := func(what string, err error) {
		t.Helper()
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			t.Errorf("%s: %s", what, pg.Message)
		} else if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	serves, works := as(t, database, "cloudfn_functions"), as(t, database, "cloudfn_events")
	who := domain.Identity{UserID: "u", ProjectID: "p1", WriteRoles: []string{"member"}}
	connections := postgres.Connections{DB: serves}
	made, err := connections.Create(ctx, domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", UserID: "u", Kind: domain.TrustConnection, DelegationID: "t", UsableBy: []string{"p2"},
		Actions: []domain.Permission{
			domain.MayAllocate,
			domain.MayConnect,
		}, ExpiresAt: time.Now().Add(time.Hour), Flavors: []domain.Flavor{}, Secret: []byte("sealed"),
		TrustExpiresAt: time.Now().Add(2 * time.Hour),
	})
	allowed("create", err)
	_, _, err = connections.Usable(ctx, who, made.ID)
	allowed("usable", err)
	_, err = connections.List(ctx, who, domain.ConnectionQuery{Usable: true, Limit: 10})
	allowed("list", err)
	_, err = connections.RequestCheck(ctx, "p1", made.ID)
	allowed("request a check", err)
	_, _, err = connections.FailedCheck(ctx, "p1", made.ID)
	allowed("read a check", err)
	_, _, _, err = connections.Resources(ctx, "p1", made.ID)
	allowed("read what was seen", err)
	through := domain.Filter{ProjectID: "p1", ConnectionID: made.ID}
	callback := domain.Callback{
		Most:      100,
		ProjectID: "p2", ID: uuid.New(), UserID: "v", OfProject: "p1", ConnectionID: made.ID,
		URL: "https://a.example", Secret: []byte("x"),
	}
	_, err = postgres.Callbacks{DB: serves}.Create(ctx, callback)
	allowed("callback", err)

	o := newOrder(1)
	o.ConnectionID, o.Payload, o.Spec.Reuse = made.ID, []byte("sealed"), true
	o.Instances[0].ConnectionID = made.ID
	_, err = postgres.Orders{DB: serves}.Place(ctx, o, 0)
	allowed("place", err)
	_, err = postgres.Orders{DB: serves}.Find(ctx, through, o.ID)
	allowed("get", err)
	instances := postgres.Instances{DB: serves}
	connected, _, err := instances.Connect(ctx, domain.Instance{
		ID: uuid.New(), ProjectID: "p1", ServerID: "s9",
		State: domain.InstanceActive, ConnectionID: made.ID,
	})
	allowed("connect", err)
	_, err = instances.ListManaged(ctx, through, 10, "")
	allowed("through", err)
	_, err = instances.Find(ctx, through, []string{connected.ID.String()})
	allowed("managed", err)
	deployments := postgres.Deployments{DB: serves}
	d := domain.Deployment{
		ID: uuid.New(), ProjectID: "p1", InstanceID: connected.ID, Image: "a:1", TokenHash: []byte("h"),
		Bundle: []byte("b"),
	}
	allowed("deploy", deployments.Create(ctx, d, time.Hour))
	_, err = deployments.Fetch(ctx, d.ID, d.TokenHash)
	allowed("fetch", err)
	allowed("ready", deployments.Ready(ctx, d.ID, d.TokenHash))
	_, err = instances.Agent(ctx, "p1", connected.ID)
	allowed("agent", err)
	allowed("drop", deployments.Drop(ctx, "p1", d.ID))
	asked, err := postgres.Actions{DB: serves}.Create(ctx, domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: made.ID, InstanceID: connected.ID, UserID: "v",
		Request: domain.ActionRequest{Action: domain.Stop},
	})
	allowed("ask", err)
	keyed := postgres.KeyedActions{DB: serves}
	action, err := keyed.Begin(ctx, newKey(), time.Hour)
	allowed("begin an action", errors.Join(err, keyed.RecordDeployment(ctx, action, d.ID),
		keyed.Finish(ctx, action, domain.ActionResult{})))
	if action, err = keyed.Begin(ctx, newKey(), time.Hour); err == nil {
		err = keyed.Abandon(ctx, action)
	}
	allowed("abandon an action", err)
	_, err = postgres.Actions{DB: serves}.Get(ctx, through, asked.ID)
	allowed("action", err)
	_, err = instances.Disconnect(ctx, domain.Filter{ProjectID: "p1", ConnectionID: made.ID}, connected.ID)
	allowed("disconnect", err)

	consent(t, serves, works, allowed)
	worker(t, works, o, asked, made, allowed)
	_, _, err = postgres.Actions{DB: serves}.Connect(ctx, domain.DelegatedAction{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: made.ID, ServerID: "s10", UserID: "v",
		Request: domain.ActionRequest{Action: domain.Connect},
	})
	allowed("ask to connect", err)
	intent := domain.OldTrust{
		ID: uuid.New(), ProjectID: "p1", ConnectionID: made.ID, UserID: "u",
		ExpiresAt: time.Now().Add(time.Hour),
	}
	_, err = connections.AnnounceTrust(ctx, intent)
	allowed("announce a trust", err)
	after := made
	after.DelegationID, after.TrustIntent, after.Secret = "t2", intent.ID, []byte("sealed")
	made, err = connections.Change(ctx, made, after)
	allowed("change", err)
	after = made
	after.Name = "x"
	made, err = connections.Change(ctx, made, after)
	allowed("change the name", err)
	_, err = connections.Suspend(ctx, "p1", made.ID, true)
	allowed("suspend", err)
	allowed("drop a trust", errors.Join(connections.DropTrust(ctx, intent),
		connections.ForgetTrust(ctx, "p1", intent.ID)))
	oldTrust(t, works, made, allowed)
	ended, err := connections.End(ctx, "p1", made.ID, domain.ConnectionDeleted, "", false)
	allowed("end", err)
	_, err = postgres.Delegations{DB: serves}.MarkRevoked(ctx, made)
	allowed("revoked", err)
	if !ended {
		t.Error("it did not end")
	}
	if _, err := (postgres.Delegations{DB: serves}).Work(ctx, 1); err == nil {
		t.Error("a function that serves HTTP reads sealed secrets")
	}
	changed := testkit.Scalar[string](t, testkit.Pool(t, database),
		`select string_agg(column_name, ' ' order by column_name)
from information_schema.column_privileges where table_name = 'connections' and privilege_type = 'UPDATE'
  and grantee like 'cloudfn\_functions\_%'`)
	if changed != "actions acts_as checked_at credential_expires_at delegation_id expires_at flavors generation "+
		"idle_timeout last_used_at limits name "+
		// not where its secret is sent to, nor whose it is
		"next_check_at quota reason resumed_at revoked secret seq status suspended_at trust_expires_at updated_at "+
		"usable_by usable_names" {
		t.Errorf("a function that serves HTTP may change %s", changed)
	}
}

// oldTrust does what run-connections does with a trust that was replaced.
func oldTrust(t *testing.T, db *postgres.DB, made domain.Connection, allowed func(string, error)) {
	t.Helper()
	d := postgres.Delegations{DB: db}
	_, err := d.Current(t.Context(), "p1", made.ID)
	allowed("current", err)
	_, err = d.OldTrusts(t.Context(), 10)
	allowed("old trusts", err)
	old := domain.OldTrust{ID: uuid.New(), ProjectID: "p1"}
	_, err = d.AdoptTrust(t.Context(), old)
	allowed("take a trust", err)
	_, err = d.MarkTrustPending(t.Context(), old, "", time.Second, time.Minute)
	allowed("a trust that cannot be deleted", err)
	_, err = d.MarkTrustGone(t.Context(), old)
	allowed("a trust that is gone", err)
}

// worker does what run-connections does.
func worker(t *testing.T, db *postgres.DB, o domain.Order, asked domain.DelegatedAction, made domain.Connection,
	allowed func(string, error),
) {
	t.Helper()
	ctx := t.Context()
	delegations, orders, actions := postgres.Delegations{DB: db}, postgres.Orders{DB: db}, postgres.Actions{DB: db}
	found, err := delegations.Work(ctx, 10)
	allowed("work", err)
	if len(found) != 1 || string(found[0].Secret) != "sealed" {
		t.Errorf("it is to work on %+v", found)
	}
	_, _, err = delegations.Status(ctx, "p1", made.ID)
	allowed("status", err)
	_, err = delegations.Ending(ctx, 10)
	allowed("ending", err)
	_, err = delegations.RemoteClouds(ctx, domain.RemotePace{})
	allowed("remote clouds", err)
	read, _, err := delegations.ClaimRead(ctx, domain.RemoteCloud{}, domain.RemotePace{}, long)
	allowed("claim a read", err)
	allowed("done with a read", delegations.DoneRead(ctx, read, true))
	allowed("release a read", delegations.ReleaseRead(ctx, read))
	_, err = delegations.ListStale(ctx, time.Minute, 10)
	allowed("stale", err)
	_, err = delegations.Busy(ctx, time.Minute, 0)
	allowed("busy", err)
	_, err = delegations.Orders(ctx, "p1", made.ID, 10)
	allowed("orders", err)
	_, err = delegations.Instances(ctx, "p1", made.ID)
	allowed("instances", err)
	claim, err := orders.Claim(ctx, o, long)
	allowed("claim", err)
	allowed("resolved", orders.UpdateSpecs(ctx, o, claim))
	allowed("decide", orders.Decide(ctx, claim, with(o.Instances[0], "s1", domain.InstanceActive)))
	allowed("finalize", orders.Finalize(ctx, finalStatus(o)))
	mine, taken, err := actions.Claim(ctx, "p1", made.ID, long, 10)
	allowed("claim actions", err)
	if len(taken) != 1 || taken[0].ID != asked.ID {
		t.Fatalf("taken were %+v", taken)
	}
	allowed("release", actions.Release(ctx, taken[0], mine, time.Minute))
	allowed("end", actions.End(ctx, taken[0], mine, nil))
	allowed("silent", delegations.MarkUnreachable(ctx, "p1", made.ID, time.Second, time.Minute))
	allowed("answered", delegations.MarkReachable(ctx, "p1", made.ID, []domain.Flavor{{ID: "1"}}))
	_, err = delegations.CheckClouds(ctx)
	allowed("check clouds", err)
	_, _, err = delegations.ClaimCheck(ctx, domain.RemoteCloud{}, time.Minute)
	allowed("claim a check", err)
	allowed("checked", delegations.MarkChecked(ctx, "p1", made.ID, time.Now(), []string{"member"}))
	allowed("unchecked", delegations.MarkUnchecked(ctx, "p1", made.ID, time.Now(), "away"))
	allowed("postpone", delegations.Postpone(ctx, "p1", o.ID, time.Second))
	_, err = delegations.MarkRevocationPending(ctx, made, "", time.Second, time.Minute)
	allowed("a revocation that failed", err)
	_, err = delegations.PendingRevocations(ctx)
	allowed("pending revocations", err)
	allowed("retire", delegations.Retire(ctx, time.Hour, time.Hour))
}

// consent is what the functions do with requests for connections.
func consent(t *testing.T, serves, works *postgres.DB, allowed func(string, error)) {
	t.Helper()
	ctx, store := t.Context(), postgres.ConnectionRequests{DB: serves}
	var requests [3]domain.ConnectionRequest
	for n := range requests {
		var err error
		requests[n], err = store.Create(ctx, newRequest())
		allowed("request a connection", err)
	}
	_, err := store.List(ctx, "p1", domain.ConnectionRequestQuery{Received: true, Limit: 1})
	allowed("list requests", err)
	_, claim, err := store.ClaimGrant(ctx, "p1", requests[0].ID, "u1", nil, time.Minute)
	allowed("claim a request", err)
	c := newConnection()
	_, err = postgres.Connections{DB: serves}.CreateGranted(ctx, c,
		domain.Grant{ProjectID: "p1", RequestID: requests[0].ID, Claim: claim, UserID: "u1"})
	allowed("grant", err)
	_, err = postgres.Connections{DB: serves}.End(ctx, "p1", c.ID, domain.ConnectionDeleted, "", true)
	allowed("end what was granted", err)
	_, err = store.ReleaseGrant(ctx, "p1", requests[1].ID, claim)
	allowed("release a request", err)
	_, err = store.Decline(ctx, "p1", requests[1].ID, "u1", "")
	allowed("decline", err)
	_, err = store.Withdraw(ctx, "p2", requests[2].ID, "u2")
	allowed("withdraw", err)

	_, err = postgres.ConnectionRequests{DB: works}.Expire(ctx)
	allowed("expire requests", err)
	allowed("retire requests", postgres.ConnectionRequests{DB: works}.Retire(ctx, time.Hour))
}
