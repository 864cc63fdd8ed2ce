package postgres_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// claimCheck claims a check of our own cloud and expects it to be of the connection want; uuid.Nil expects that no
// check is due.
func claimCheck(t *testing.T, d postgres.Delegations, want uuid.UUID) {
	t.Helper()
	c, found, err := d.ClaimCheck(t.Context(), domain.RemoteCloud{}, time.Minute)
	if err != nil || found != (want != uuid.Nil) || c.ID != want {
		t.Fatalf("got %s %t %v, want %s", c.ID, found, err, want)
	}
}

// now is the database's clock.
func (l testDB) now(t *testing.T) time.Time {
	t.Helper()
	now, err := l.Now(t.Context())
	if err != nil {
		t.Error(err)
	}
	return now
}

// holds reports a condition on the database that is false.
func (l testDB) holds(t *testing.T, sql string) {
	t.Helper()
	if !testkit.Scalar[bool](t, l.conn, sql) {
		t.Errorf("false: %s", sql)
	}
}

// TestChecksAreSpread: a new connection is checked some minutes later, each by one replica, that first which has been
// due for the longest.
func TestChecksAreSpread(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	const many = 20
	for range many {
		l.storeConnection(t, domain.ConnectionQuota{}, func(c *domain.Connection) { c.Secret = []byte("sealed") })
	}
	ended := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	other := l.storeConnection(t, domain.ConnectionQuota{},
		func(c *domain.Connection) { c.AuthURL = elsewhere.AuthURL })
	claimCheck(t, d, uuid.Nil)
	if clouds, err := d.CheckClouds(t.Context()); err != nil || len(clouds) != 0 {
		t.Errorf("clouds with connections to check: %v %v", clouds, err)
	}
	l.holds(t, `select count(distinct next_check_at) > 15 and min(next_check_at) > now() + interval '3 minutes'
		and max(next_check_at) < now() + interval '7 minutes' from connections`)
	l.exec(t, "update connections set status = 'lost' where id = $1", ended.ID)
	l.exec(t, "update connections set next_check_at = next_check_at - interval '10 minutes'")
	if clouds, err := d.CheckClouds(t.Context()); err != nil || len(clouds) != 2 ||
		!slices.Contains(clouds, elsewhere) {
		t.Errorf("clouds with connections to check: %v %v", clouds, err)
	}
	if c, found, err := d.ClaimCheck(t.Context(), elsewhere, time.Minute); err != nil || !found || c.ID != other.ID {
		t.Errorf("of the other cloud: %v %t %v", c.ID, found, err)
	}
	var mu sync.Mutex
	taken := map[uuid.UUID]int{}
	concurrently(4, func(int) {
		for {
			c, found, err := d.ClaimCheck(t.Context(), domain.RemoteCloud{}, time.Minute)
			if err != nil || !found {
				return
			}
			mu.Lock()
			taken[c.ID]++
			mu.Unlock()
			if err := d.MarkChecked(t.Context(), "p1", c.ID, l.now(t), []string{"member"}); err != nil ||
				string(c.Secret) != "sealed" {
				t.Errorf("%v, with the secret %q", err, c.Secret)
			}
		}
	})
	if len(taken) != many {
		t.Errorf("%d of %d were checked", len(taken), many)
	}
	for id, n := range taken {
		if n != 1 {
			t.Errorf("%s was checked %d times", id, n)
		}
	}
	l.holds(t, `select min(next_check_at) > now() + interval '3 minutes' from connections where auth_url = ''
  and status = 'active'`)
}

// TestChecksTogether: when a check is due, an event does those of all clouds that are due within 150 s with it. So no
// check is due for 150 s after it, and each connection is checked six minutes after its last check at the latest.
func TestChecksTogether(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	const many = 24
	for n := range many {
		l.storeConnection(t, domain.ConnectionQuota{}, func(c *domain.Connection) {
			if n%2 == 0 {
				c.AuthURL = elsewhere.AuthURL
			}
		})
	}
	l.exec(t, `update connections c set next_check_at = at, checked_at = at - interval '6 minutes' from (
    select id, now() + row_number() over (order by id) * interval '15 seconds' as at from connections) spread
where c.id = spread.id`)
	event := func() (checked int) {
		t.Helper()
		clouds := must(d.CheckClouds(t.Context()))(t)
		for _, cloud := range clouds {
			for {
				c, isFound := must2(d.ClaimCheck(t.Context(), cloud, time.Minute))(t)
				if !isFound {
					break
				}
				checked++
				noError(t, d.MarkChecked(t.Context(), "p1", c.ID, l.now(t), nil))
			}
		}
		return checked
	}
	if n := event(); n != 0 {
		t.Errorf("%d were checked before any check was due", n)
	}
	for range 10 { // more than half an hour
		pause := testkit.Scalar[time.Duration](t, l.conn, "select min(next_check_at) - clock_timestamp() from connections")
		must(l.conn.Exec(t.Context(), `update connections set checked_at = checked_at - $1::interval,
    next_check_at = next_check_at - $1::interval, check_until = check_until - $1::interval`, pause))(t)
		if age := testkit.Scalar[time.Duration](t, l.conn,
			"select max(clock_timestamp() - checked_at) from connections"); age > 6*time.Minute+10*time.Second {
			t.Errorf("a check is %s old", age)
		}
		n := event()
		next := testkit.Scalar[time.Duration](t, l.conn, "select min(next_check_at) - clock_timestamp() from connections")
		if n == 0 || next < 140*time.Second {
			t.Errorf("after an event with %d checks the next one is due in %s", n, next)
		}
	}
}

// TestLateAnswer: what a later request has recorded stays when the answer to an earlier one arrives: a replica whose
// claim has ended may still record it.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	early := l.now(t)
	accepted := func(started time.Time) error {
		return d.MarkChecked(t.Context(), "p1", c.ID, started, []string{"member"})
	}
	failed := func(started time.Time) error { return d.MarkUnchecked(t.Context(), "p1", c.ID, started, "no answer") }
	for _, answer := range []struct {
		last, late func(time.Time) error
		why        string
	}{{accepted, failed, ""}, {failed, accepted, "no answer"}, {failed, failed, "no answer"}} {
		started := l.now(t)
		noError(t, errors.Join(answer.last(started), answer.late(early)))
		if !testkit.Scalar[bool](t, l.conn, `select check_error = $2 and greatest(checked_at, check_failed_at) = $3
from connections where id = $1`, c.ID, answer.why, started) {
			t.Errorf("the last answer is %q, and a late one was recorded", answer.why)
		}
	}
}

// TestRequestCheck: a requested check is due immediately, and once more when it was requested during another check. The
// check of a dead replica is due when its claim expires.
func TestRequestCheck(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d, connections := postgres.Delegations{DB: l.DB}, postgres.Connections{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	request := func() time.Time {
		t.Helper()
		return must(connections.RequestCheck(t.Context(), "p1", c.ID))(t)
	}
	request()
	claimCheck(t, d, c.ID)
	claimCheck(t, d, uuid.Nil) // another replica
	started := l.now(t)
	request()
	noError(t, d.MarkChecked(t.Context(), "p1", c.ID, started, []string{"member", "reader"}))
	// not twice within two seconds, which may have passed here
	l.holds(t, "select check_until > checked_at + interval '2 seconds' from connections")
	l.exec(t, "update connections set check_until = now() + interval '1 hour'")
	claimCheck(t, d, uuid.Nil)
	l.exec(t, "update connections set check_until = now() - interval '1 second'")
	claimCheck(t, d, c.ID)
	got, err := connections.Get(t.Context(), domain.Identity{UserID: "u1", ProjectID: "p1"}, c.ID)
	if err != nil || !got.CheckedAt.Equal(started) || !slices.Equal(got.ActsAs.Roles, []string{"member", "reader"}) ||
		got.Status != domain.ConnectionActive {
		t.Errorf("got %+v, which should have been checked at %s", got, started)
	}
	l.exec(t, "update connections set check_until = now() - interval '1 second'") // the replica has died
	claimCheck(t, d, c.ID)
	started = l.now(t)
	noError(t, d.MarkUnchecked(t.Context(), "p1", c.ID, started, "keystone cannot be reached"))
	at, why, err := connections.FailedCheck(t.Context(), "p1", c.ID)
	if err != nil || !at.Equal(started) || why != "keystone cannot be reached" {
		t.Errorf("the check failed at %s: %q %v", at, why, err)
	}
	claimCheck(t, d, uuid.Nil)
	must(connections.End(t.Context(), "p1", c.ID, domain.ConnectionLost, "", true))(t)
	if since := request(); !since.IsZero() {
		t.Errorf("one that has ended is to be checked since %s", since)
	}
}

// TestRequestAfterClaim: a check takes longer than its claim. What is requested then is not answered by it, so another
// check is due.
func TestRequestAfterClaim(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d, connections := postgres.Delegations{DB: l.DB}, postgres.Connections{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	for _, answer := range []func(time.Time) error{
		func(started time.Time) error { return d.MarkChecked(t.Context(), "p1", c.ID, started, nil) },
		func(started time.Time) error { return d.MarkUnchecked(t.Context(), "p1", c.ID, started, "no answer") },
	} {
		l.exec(t, "update connections set next_check_at = now() - interval '1 second'")
		claimCheck(t, d, c.ID)
		started := l.now(t)
		l.exec(t, "update connections set check_until = now() - interval '1 second'")
		since, err := connections.RequestCheck(t.Context(), "p1", c.ID)
		if err = errors.Join(err, answer(started)); err != nil || !since.After(started) {
			t.Fatalf("requested at %s, started at %s: %v", since, started, err)
		}
		l.exec(t, "update connections set check_until = now() - interval '1 second'")
		claimCheck(t, d, c.ID)
		l.exec(t, "update connections set check_until = now() - interval '1 second'")
	}
}

// TestPostpone leaves an order alone for a while, also one whose replica has died, and not one that a replica works on.
func TestPostpone(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	order := connectedOrder(c, 1)
	must(l.Place(t.Context(), order, 0))(t)
	open := func(want int) {
		t.Helper()
		if ids, err := d.Orders(t.Context(), "p1", c.ID, 10); err != nil || len(ids) != want {
			t.Errorf("%d orders wait, want %d: %v", len(ids), want, err)
		}
	}
	open(1)
	noError(t, d.Postpone(t.Context(), "p1", order.ID, time.Minute))
	open(0)
	l.exec(t, "update orders set claimed_until = now() - interval '1 second', claim_id = gen_random_uuid()")
	open(1) // its replica has died
	noError(t, d.Postpone(t.Context(), "p1", order.ID, time.Minute))
	open(0)
	l.exec(t, "update orders set claimed_until = now() + interval '1 hour', claim_id = gen_random_uuid()")
	noError(t, d.Postpone(t.Context(), "p1", order.ID, 24*time.Hour))
	if isClaimed := testkit.Scalar[bool](t, l.conn,
		"select claim_id is not null and claimed_until < now() + interval '2 hours' from orders"); !isClaimed {
		t.Error("an order that a replica works on is postponed")
	}
}

// TestCheckOfAnotherCloud: a check by Keystone makes only a connection to our own cloud reachable again.
func TestCheckOfAnotherCloud(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	for _, cloud := range []domain.RemoteCloud{{}, elsewhere} {
		c := l.storeConnection(t, domain.ConnectionQuota{}, func(c *domain.Connection) { c.AuthURL = cloud.AuthURL })
		noError(t, d.MarkUnreachable(t.Context(), "p1", c.ID, time.Minute, time.Hour))
		noError(t, d.MarkChecked(t.Context(), "p1", c.ID, l.now(t), nil))
	}
	l.holds(t, `select bool_and((failures = 1 and silent_since is not null
  and not_before is not null) = (auth_url <> '')) from connections`)
}
