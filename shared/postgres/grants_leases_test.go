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
