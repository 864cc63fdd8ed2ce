package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// as opens the database as a role of its own with what grants.sql gives the role of that name.
func as(t *testing.T, database, name string) *postgres.DB {
	t.Helper()
	grants, err := os.ReadFile("grants.sql")
	if err != nil {
		t.Fatal(err)
	}
	role := fmt.Sprintf("%s_%x", name, uuid.New().ID())
	conn := testkit.Connect(t, database)
	for _, sql := range []string{"create role " + role, strings.ReplaceAll(string(grants), name, role)} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("role", role)
	u.RawQuery = query.Encode()
	db := open(t, u.String())
	t.Cleanup(func() {
		db.Close()
		_, err := conn.Exec(context.Background(), "drop owned by "+role+"; drop role "+role)
		if err != nil {
			t.Error(err)
		}
	})
	return db
}

// TestGrantsOfFunctions to orders, instances and callbacks, as the role of functions that serve HTTP.
func TestGrantsOfFunctions(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	db, conn := as(t, database, "cloudfn_functions"), testkit.Connect(t, database)
	callbacks, orders, instances := postgres.Callbacks{DB: db}, postgres.Orders{DB: db}, postgres.Instances{DB: db}
	allowed := func(what string, err error) {
		t.Helper()
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			t.Errorf("%s: %s", what, pg.Message)
		} else if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	c, err := callbacks.Create(ctx, domain.Callback{
		Most:      100,
		ProjectID: "p1", ID: uuid.New(), UserID: "u", URL: "https://a.example",
		Secret: []byte("x"),
	})
	allowed("create", err)
	o := newOrder(2)
	o.Callback = &domain.Callback{
		Most:      100,
		ProjectID: "p1", ID: uuid.New(), UserID: "u", URL: "https://b.example", OrderID: o.ID,
		Secret: []byte("x"),
	}
	claim, err := orders.Place(ctx, o, long)
	allowed("place", err)
	allowed("keyed", orders.RecordFingerprint(ctx, o, claim, "f"))
	allowed("decide", orders.Decide(ctx, claim, with(o.Instances[0], "s0", domain.InstanceBuilding)))
	_, err = instances.Change(ctx, []domain.Instance{with(o.Instances[0], "s0", domain.InstanceActive)})
	allowed("change an instance", err)
	allowed("finalize", orders.Finalize(ctx, finalStatus(o)))
	_, err = instances.Find(ctx, domain.Filter{ProjectID: "p1"}, []string{o.Instances[0].ID.String()})
	allowed("named", err)
	status := domain.CallbackSuspended
	for range 2 {
		_, _, err = callbacks.Change(ctx, "p1", c.ID, domain.CallbackChange{Status: &status})
		allowed("change to "+string(status), err)
		status = domain.CallbackVerified
	}
	_, err = callbacks.Rotate(ctx, "p1", c.ID, []byte("y"), time.Hour)
	allowed("rotate", err)
	_, err = callbacks.Test(ctx, "p1", c.ID, uuid.New())
	allowed("test", err)
	delivery := testkit.Scalar[uuid.UUID](t, conn,
		`update deliveries set status = 'dead' where id = (select id from deliveries where callback_id = $1
  limit 1) returning id`, c.ID)
	_, err = callbacks.Deliveries(ctx, "p1", c.ID, domain.DeliveryQuery{Limit: 1, Marker: delivery})
	allowed("deliveries", err)
	_, err = callbacks.Redeliver(ctx, "p1", c.ID, delivery, uuid.New())
	allowed("redeliver", err)
	allowed("delete", callbacks.Delete(ctx, "p1", c.ID))
}

// TestRedeliverDuringRetention: retention deletes the old delivery while its redelivery waits.
func TestRedeliverDuringRetention(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	callbacks, conn := postgres.Callbacks{DB: open(t, database)}, testkit.Connect(t, database)
	callback := testkit.AddCallback(t, conn, "p1", "https://a.example", domain.CallbackVerified, "whsec_x", "")
	testkit.AddEvents(t, conn, "p1", []string{"s"}, 1)
	delivery := testkit.Scalar[uuid.UUID](t, conn, "update deliveries set status = 'dead' returning id")
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "delete from events"); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error)
	go func() {
		_, err := callbacks.Redeliver(t.Context(), "p1", callback, delivery, uuid.New())
		answer <- err
	}()
	watch := testkit.Connect(t, database)
	testkit.Eventually(t, 5*time.Second, "it waits for the event", func() bool {
		return testkit.Scalar[bool](t, watch,
			`select exists (select from pg_locks l join pg_stat_activity a using (pid) where not l.granted
  and a.datname = current_database())`)
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; apperr.CodeOf(err) != apperr.NotFound {
		t.Errorf("got %v", err)
	}
}

// readers are who may read what opens something, or what users did: stated by hand, because grants.sql is generated.
var readers = map[string]string{
	"connections.secret":        "run_connections",
	"callbacks.secret":          "callbacks deliver_events",
	"deployments.bundle":        "agents run_connections servers",
	"idempotency_keys.response": "callbacks connections launch leases servers",
	"managed_revisions.secrets": "managed reconcile_managed",
	"instances.spec": "callbacks collect_stats connections deliver_events launch leases poll_instances " +
		"reconcile_managed resources run_connections run_leases servers",
	"node_tokens.*":   "nodes",
	"requests.path":   "collect_stats stats",
	"sessions.sealed": "console",
}

// TestRolesOfFunctions tries others' tables with the role of each function: what it reads, and that it owns nothing.
func TestRolesOfFunctions(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	mayRead := map[string][]string{}
	for _, name := range functionRoles(t) {
		db := as(t, database, "cloudfn_"+name).Pool()
		for column := range readers {
			table, field, _ := strings.Cut(column, ".")
			_, err := db.Exec(t.Context(), "select "+field+" from "+table)
			if err == nil {
				mayRead[column] = append(mayRead[column], name)
			} else if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
				t.Errorf("%s reads %s: %v", name, column, err)
			}
		}
		for _, sql := range []string{
			"create table mine (n int)", "drop table requests", "alter table orders add mine int",
			"truncate requests", "select pg_read_file('/etc/passwd')", "create role cloudfn_mine",
			"alter function fan_out() security invoker",
		} {
			_, err := db.Exec(t.Context(), sql)
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
				t.Errorf("%s: %s: got %v", name, sql, err)
			}
		}
		_, err := db.Exec(t.Context(), "select drop_requests_month('2020-01-01Z')")
		if (err == nil) != (name == "collect_stats") {
			t.Errorf("%s drops a month of the request log: %v", name, err)
		}
	}
	for column, want := range readers {
		if got := strings.Join(mayRead[column], " "); got != want {
			t.Errorf("%s is read by %q, want %q", column, got, want)
		}
	}
	owned := testkit.Scalar[int](t, conn, "select count(*)::int from pg_class where relowner <> current_user::regrole "+
		"and relnamespace = 'public'::regnamespace")
	if owned != 0 {
		t.Errorf("functions own %d tables", owned)
	}
}

// functionRoles are the names in grants.sql, sorted, without the two that functions shared.
func functionRoles(t *testing.T) (names []string) {
	t.Helper()
	grants, err := os.ReadFile("grants.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`rolname = 'cloudfn_(\w+)'`).FindAllSubmatch(grants, -1) {
		if name := string(m[1]); name != "functions" && name != "events" {
			names = append(names, name)
		}
	}
	if slices.Sort(names); len(names) < 18 {
		t.Fatalf("roles are %v", names)
	}
	return names
}

// TestAgentsReachesNoSubscriber: guests call agents, so it cannot read who is notified, nor the request log or what is
// delegated. Its events reach subscribers all the same.
func TestAgentsReachesNoSubscriber(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, agents := testkit.Connect(t, database), as(t, database, "cloudfn_agents")
	testkit.AddCallback(t, conn, "p1", "https://a.example", domain.CallbackVerified, "whsec_x", "")
	instance := addInstance(t, conn)
	d := domain.Deployment{
		ID: uuid.New(), ProjectID: "p1", InstanceID: instance, Image: "a:1", TokenHash: []byte("h"),
		Bundle: []byte("b"),
	}
	if err := (postgres.Deployments{DB: open(t, database)}).Create(t.Context(), d, time.Hour); err != nil {
		t.Fatal(err)
	}
	deployments := postgres.Deployments{DB: agents}
	if _, err := deployments.Fetch(t.Context(), d.ID, d.TokenHash); err != nil {
		t.Error(err)
	}
	before := testkit.Scalar[int](t, conn, "select count(*)::int from deliveries")
	if err := deployments.Ready(t.Context(), d.ID, d.TokenHash); err != nil {
		t.Error(err)
	}
	if after := testkit.Scalar[int](t, conn, "select count(*)::int from deliveries"); after != before+1 {
		t.Errorf("the subscriber got %d deliveries, want one", after-before)
	}
	insert(t, postgres.Requests{DB: agents}, request("/v1/agents/x"))
	for _, table := range []string{
		"callbacks", "deliveries", "streams", "connections", "requests", "orders", "sessions",
	} {
		for _, sql := range []string{"select * from " + table, "delete from " + table} {
			isDenied(t, agents, sql)
		}
	}
	for _, sql := range []string{
		"update instances set state = 'deleted'", "update instances set server_id = null", "select spec from instances",
		"select problem from instances", "delete from instances", "update deployments set token_sha256 = 'x'",
		"update deployments set instance_id = null", "update deployments set expires_at = 'infinity'",
		"delete from deployments", "insert into deployments default values", "insert into instances default values",
	} {
		isDenied(t, agents, sql)
	}
}

// isDenied checks that a role lacks the right for a statement.
func isDenied(t *testing.T, db *postgres.DB, sql string) {
	t.Helper()
	_, err := db.Pool().Exec(t.Context(), sql)
	if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
		t.Errorf("%s: got %v", sql, err)
	}
}

// TestGrantsOfLeases: functions that serve HTTP store, change and end leases and hosts; run-leases does the rest.
func TestGrantsOfLeases(t *testing.T) {
	t.Parallel()
	ctx, database := t.Context(), testkit.Database(t)
	web, events := as(t, database, "cloudfn_functions"), as(t, database, "cloudfn_events")
	conn := testkit.Connect(t, database)
	users, runner := postgres.Leases{DB: web}, postgres.Leases{DB: events}
	allowed := func(what string, err error) {
		t.Helper()
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
			t.Errorf("%s: %s", what, pg.Message)
		} else if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	addNodes(t, conn, 3)
	testkit.AddCallback(t, conn, "p1", "https://a.example", domain.CallbackVerified, "whsec_x", "")
	trusts := 0
	announced := func() *domain.Connection {
		c := newConnection()
		c.Kind, c.Secret, c.AuthURL, c.Region, c.TrustIntent = domain.TrustConnection, nil, "", "", uuid.New()
		trusts++
		c.DelegationID, c.TrustExpiresAt = c.ID.String(), time.Now().Add(time.Duration(trusts)*time.Hour)
		isFree, err := postgres.Connections{DB: web}.AnnounceTrust(ctx, domain.OldTrust{
			ID: c.TrustIntent, ProjectID: c.ProjectID, ConnectionID: c.ID, UserID: c.UserID,
			ExpiresAt: c.TrustExpiresAt,
		})
		allowed("announce", err)
		if !isFree {
			t.Error("the trust's end is taken")
		}
		return &c
	}
	made := newLease(0, 1)
	made.Connection = announced()
	made.Lease.Reservations = append(made.Lease.Reservations, domain.Reservation{
		ID: uuid.New(), Type: domain.InstanceReservation, InstanceID: addInstance(t, conn),
	})
	l, err := users.Create(ctx, made)
	allowed("create", err)
	_, err = users.Check(ctx, newLease(0, 1))
	allowed("check", err)
	longer := l
	longer.EndsAt = l.EndsAt.Add(time.Hour)
	_, err = users.Change(ctx, l, longer, announced(), domain.LeaseRules{})
	allowed("change", err)
	_, err = users.List(ctx, "p1", domain.LeaseQuery{Limit: 1})
	allowed("list", err)
	_, err = users.Availability(ctx, domain.FreeQuery{
		Hosts: 1, Length: period(t, "PT1H"), From: time.Now(), Until: time.Now().Add(time.Hour), Limit: 1,
	})
	allowed("availability", err)
	_, err = users.Allocations(ctx, domain.AllocationQuery{From: time.Now(), Until: time.Now().Add(time.Hour)})
	allowed("allocations", err)

	due, claim, err := take(ctx, runner.Queue(), long, 1)
	allowed("claim", err)
	if len(due) != 1 {
		t.Fatal("nothing is due")
	}
	lease, r := &due[0], due[0].Reservations[0]
	lease.Status = domain.LeaseStarting
	allowed("save a step", runner.SaveStep(ctx, claim, lease, long))
	allowed("prepared", runner.Prepared(ctx, claim, r, r.Allocations[0].Node))
	_, _, err = runner.Reallocate(ctx, claim, *lease, r, r.Allocations[0].Node)
	allowed("reallocate", err)
	allowed("released", runner.Released(ctx, claim, r, r.Allocations[0].Node))
	lease.WarnedAt = lease.CreatedAt
	lease.Status = domain.LeaseError
	allowed("save", runner.Save(ctx, claim, lease))
	_, err = users.Retry(ctx, "p1", l.ID, announced(), nil)
	allowed("retry", err)
	_, err = users.End(ctx, "p1", l.ID, "", nil)
	allowed("end", err)
	due, claim, err = take(ctx, runner.Queue(), long, 1)
	allowed("claim its end", err)
	due[0].Status = domain.LeaseEnded
	allowed("finish", runner.Finish(ctx, claim, &due[0]))
	_, err = isDue(ctx, runner.Queue(), time.Hour)
	allowed("next due", err)
	allowed("abandon", postgres.Actions{DB: events}.Abandon(ctx, domain.DelegatedAction{ProjectID: "p1"}, nil))
	allowed("retire", runner.Retire(ctx, time.Hour))

	hosts, pool := postgres.Nodes{DB: events}, postgres.Nodes{DB: events}
	_, err = hosts.Join(ctx, domain.Node{Name: "c1"})
	allowed("join", err)
	_, err = hosts.Pool(ctx)
	allowed("nodes", err)
	_, err = pool.SetPool(ctx, "c1", domain.NodeJoining, domain.NodeReservable, "")
	allowed("set pool", err)
	allowed("seen", pool.Seen(ctx, []domain.ComputeHost{{Name: "c1", IsUp: true}}))
	allowed("set up", pool.SetUp(ctx, "c1", false))
	_, err = hosts.Leave(ctx, "c1", "admin")
	allowed("leave", err)
	_, err = pool.Left(ctx, "c1")
	allowed("left", err)
	allowed("isolation", postgres.Isolations{DB: events}.Set(ctx, "", domain.IsolationProven, ""))
	_, err = postgres.Isolations{DB: events}.Get(ctx, "")
	allowed("isolation", err)
}

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
