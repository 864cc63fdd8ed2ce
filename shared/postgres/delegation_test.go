package postgres_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// connectionIDs are the ids of connections, sorted.
func connectionIDs(connections []domain.Connection) []uuid.UUID {
	ids := make([]uuid.UUID, len(connections))
	for n, c := range connections {
		ids[n] = c.ID
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return ids
}

// TestEnding: connections that are over are listed, and trusts to revoke, unless their cloud gave no answer.
func TestEnding(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	credential := func(c *domain.Connection) { c.Kind, c.Secret = domain.CredentialConnection, []byte("sealed") }
	store := func(change func(*domain.Connection)) domain.Connection {
		return l.storeConnection(t, domain.ConnectionQuota{}, change)
	}
	over, idle, used, active := store(credential), store(nil), store(nil), store(nil)
	trust, gone, ended, silent := store(nil), store(nil), store(credential), store(nil)
	l.exec(t, "update connections set expires_at = now() where id = $1", over.ID)
	l.exec(t, `update connections set idle_timeout = '1 minute', created_at = now() - interval '2 minutes'
  where id = any($1)`, []uuid.UUID{idle.ID, used.ID})
	l.exec(t, "update connections set last_used_at = now() where id = any($1)", []uuid.UUID{used.ID, active.ID})
	l.exec(t, "update connections set status = 'deleted' where id = any($1)",
		[]uuid.UUID{trust.ID, gone.ID, ended.ID, silent.ID})
	must(d.MarkRevoked(t.Context(), gone))(t)
	noError(t, d.MarkUnreachable(t.Context(), "p1", silent.ID, time.Minute, time.Hour))
	found, err := d.Ending(t.Context(), 10)
	want := connectionIDs([]domain.Connection{over, idle, trust})
	if got := connectionIDs(found); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: %v", got, want, err)
	}
	for _, c := range found {
		if c.ID == over.ID && string(c.Secret) != "sealed" {
			t.Errorf("its secret is %q", c.Secret)
		}
	}
}

// TestWork: connections with unclaimed work are listed; those whose cloud gives no answer only once they have ended.
func TestWork(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	create := func() domain.Connection { return l.storeConnection(t, domain.ConnectionQuota{}, nil) }
	nothing, requested, ordered, taken := create(), create(), create(), create()
	claimed, silent, silentEnded := create(), create(), create()
	for _, c := range []domain.Connection{requested, taken, silent, silentEnded} {
		l.request(t, c, uuid.New())
	}
	l.take(t, taken, time.Minute, 1)
	for _, c := range []domain.Connection{ordered, claimed} {
		must(l.Place(t.Context(), connectedOrder(c, 1), 0))(t)
	}
	l.exec(t, "update orders set claimed_until = now() + interval '1 minute' where connection_id = $1", claimed.ID)
	for _, c := range []domain.Connection{silent, silentEnded} {
		noError(t, d.MarkUnreachable(t.Context(), "p1", c.ID, time.Minute, time.Hour))
	}
	l.exec(t, "update connections set status = 'expired' where id = $1", silentEnded.ID)
	found, err := d.Work(t.Context(), 10)
	want := connectionIDs([]domain.Connection{requested, ordered, silentEnded})
	if got := connectionIDs(found); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: %v", got, want, err)
	}
	ids, err := d.Orders(t.Context(), "p1", ordered.ID, 10)
	if err != nil || len(ids) != 1 {
		t.Errorf("its orders are %v %v", ids, err)
	}
	if ids, err := d.Orders(t.Context(), "p1", claimed.ID, 10); err != nil || len(ids) != 0 {
		t.Errorf("orders that someone works on: %v %v", ids, err)
	}
	if ids, err := d.Orders(t.Context(), "p1", nothing.ID, 10); err != nil || len(ids) != 0 {
		t.Errorf("of nothing: %v %v", ids, err)
	}
}

// TestBusy while there is anything to do, no matter who does it, but not for what waits for a silent cloud.
func TestBusy(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	busy := func(want bool, when string) {
		t.Helper()
		if got, err := d.Busy(t.Context(), time.Minute, 30*time.Second); err != nil || got != want {
			t.Errorf("%s: %t %v", when, got, err)
		}
	}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	busy(false, "nothing to do")
	a := l.request(t, c, uuid.New())
	claim, _ := l.take(t, c, time.Minute, 1)
	busy(true, "an action is being done")
	noError(t, d.MarkUnreachable(t.Context(), "p1", c.ID, time.Minute, time.Hour))
	busy(false, "the cloud is silent")
	l.exec(t, "update connections set not_before = now() + interval '20 seconds'")
	busy(true, "its pause is about to end")
	noError(t, d.MarkReachable(t.Context(), "p1", c.ID, nil))
	busy(true, "it answers again")
	noError(t, postgres.Actions{DB: l.DB}.End(t.Context(), a, claim, nil))
	busy(false, "the action is done")
	must(l.Place(t.Context(), connectedOrder(c, 1), 0))(t)
	busy(true, "an order is running")
	l.exec(t, "update orders set status = 'done'")
	busy(false, "it is done")
	l.exec(t, "update instances set remote = true, server_id = 's', state = 'building', updated_at = now()")
	busy(true, "another cloud is at work")
	l.exec(t, "update instances set updated_at = now() - interval '2 minutes'")
	busy(false, "it has been for long")
	l.exec(t, "update connections set status = 'expired'")
	busy(true, "a trust is to be taken back")
	noError(t, d.MarkUnreachable(t.Context(), "p1", c.ID, time.Minute, time.Hour))
	busy(false, "Keystone is silent")
	l.exec(t, "update connections set not_before = now() + interval '20 seconds'")
	busy(true, "Keystone's pause is about to end")
	l.exec(t, "update connections set not_before = null, revoked = true")
	busy(false, "it is taken back")
}

// TestUnreachableCloudPauses: the pause grows with each failure, up to a bound, and ends with the first answer.
// Failures at the same time count once.
func TestUnreachableCloudPauses(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	var since time.Time
	for n, want := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
		l.exec(t, "update connections set not_before = now()")
		for range 8 { // actions that were being done
			noError(t, d.MarkUnreachable(t.Context(), "p1", c.ID, 10*time.Second, 10*time.Minute))
		}
		var pause time.Duration
		var began time.Time
		noError(t, l.conn.QueryRow(t.Context(), "select not_before - now(), silent_since from connections").Scan(&pause,
			&began))
		if want *= time.Second; pause > want+time.Second || pause < want-5*time.Second {
			t.Errorf("pause %d is %s, want %s", n, pause, want)
		}
		if n > 0 && !began.Equal(since) {
			t.Error("it is said to have begun later")
		}
		since = began
	}
	flavors := []domain.Flavor{{ID: "f1", Name: "tiny", VCPUs: 1, RAMMB: 512}}
	noError(t, d.MarkReachable(t.Context(), "p1", c.ID, flavors))
	if err := d.MarkReachable(t.Context(), "p1", c.ID, nil); err != nil { // keeps them
		t.Fatal(err)
	}
	var ok bool
	err := l.conn.QueryRow(t.Context(),
		`select failures = 0 and silent_since is null and not_before is null and flavors->0->>'name' = 'tiny'
  from connections`).Scan(&ok)
	if err != nil || !ok {
		t.Errorf("after an answer: %t %v", ok, err)
	}
}

// TestRetireDelegated: only rows that ended long ago are deleted.
func TestRetireDelegated(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	c, instance := l.storeConnection(t, domain.ConnectionQuota{}, nil), uuid.New()
	old, young := l.request(t, c, uuid.New()), l.request(t, c, uuid.New())
	l.request(t, c, uuid.New()) // which is still to be done
	l.exec(t, "update actions set status = 'done' where id = any($1)", []uuid.UUID{old.ID, young.ID})
	l.exec(t, "update actions set updated_at = now() - interval '8 days' where id <> $1", young.ID)
	for n := range 2 {
		made := domain.Deployment{
			ID: uuid.New(), ProjectID: "p1", InstanceID: instance, Image: "i",
			TokenHash: []byte{byte(n)}, Bundle: []byte("b"),
		}
		noError(t, postgres.Deployments{DB: l.DB}.Create(t.Context(), made, -time.Second))
		l.exec(t, "update deployments set created_at = created_at - interval '8 days'")
	}
	noError(t, d.Retire(t.Context(), 7*24*time.Hour, 90*24*time.Hour))
	var actions, deployments, bundles int
	err := l.conn.QueryRow(t.Context(),
		`select (select count(*) from actions), (select count(*) from deployments), (select count(bundle) from deployments)`).
		Scan(&actions, &deployments, &bundles)
	if err != nil || actions != 2 || deployments != 1 || bundles != 0 {
		t.Errorf("left are %d actions, %d deployments and %d bundles: %v", actions, deployments, bundles, err)
	}
}

// TestStreamsShareSlots: all waiting work gets a slot. An order that was claimed and has not ended comes after those
// that were not claimed for longer.
func TestStreamsShareSlots(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	first := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	second := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	var orders []domain.Order
	for _, c := range []domain.Connection{first, first, second} {
		o := connectedOrder(c, 1)
		must(l.Place(t.Context(), o, 0))(t)
		orders = append(orders, o)
	}
	claim, err := l.Claim(t.Context(), orders[0], time.Minute)
	if err == nil {
		err = l.Release(t.Context(), orders[0], claim)
	}
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := d.Orders(t.Context(), "p1", first.ID, 1); err != nil || len(ids) != 1 || ids[0] != orders[1].ID {
		t.Errorf("after a claim of %s the next order is %s: %v", orders[0].ID, ids, err)
	}
	turns := map[uuid.UUID]bool{}
	for range 40 {
		found, err := d.Work(t.Context(), 1)
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		turns[found[0].ID] = true
	}
	if len(turns) != 2 {
		t.Errorf("Work returned %d of 2 connections", len(turns))
	}
	a, b := l.request(t, first, uuid.New()), l.request(t, first, uuid.New())
	for _, want := range []uuid.UUID{a.ID, b.ID, a.ID} {
		claim, taken := l.take(t, first, time.Minute, 1)
		if len(taken) != 1 || taken[0].ID != want {
			t.Fatalf("it is the turn of %v, want %s", taken, want)
		}
		noError(t, postgres.Actions{DB: l.DB}.Release(t.Context(), taken[0], claim, -time.Second))
		time.Sleep(time.Millisecond)
	}
}

// elsewhere is the cloud of the connections of these tests.
var elsewhere = domain.RemoteCloud{AuthURL: "http://elsewhere.invalid/v3"}

var usual = domain.RemoteIntervals{Usual: time.Minute, Moving: 2 * time.Second, Within: 10 * time.Minute}

// remote stores a connection to a cloud, with one instance that has a server there and one that has none yet.
func remote(t *testing.T, l testDB, cloud domain.RemoteCloud) domain.Connection {
	t.Helper()
	c := l.storeConnection(t, domain.ConnectionQuota{}, func(c *domain.Connection) {
		c.AuthURL, c.Region = cloud.AuthURL,
			cloud.Region
	})
	o := connectedOrder(c, 2)
	for n := range o.Instances {
		o.Instances[n].Remote = true
	}
	must(l.Place(t.Context(), o, 0))(t)
	l.exec(t, "update instances set state = 'active', server_id = id::text where position = 0 and connection_id = $1",
		c.ID)
	return c
}

// TestReadsOfRemoteConnections: the one that was not read for the longest is claimed first, each by one replica, and is
// due again after the interval. A replica that was overtaken writes nothing.
func TestReadsOfRemoteConnections(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	old, fresh, never, other := remote(t, l, elsewhere), remote(t, l, elsewhere), remote(t, l, elsewhere), remote(t, l,
		domain.RemoteCloud{Region: "two"})
	l.storeConnection(t, domain.ConnectionQuota{}, nil) // to our own cloud
	l.exec(t, "update connections set read_at = now() - interval '2 minutes' where id = $1", old.ID)
	l.exec(t, "update connections set read_at = now() where id = $1", fresh.ID)
	if clouds, err := d.RemoteClouds(t.Context(), usual); err != nil || len(clouds) != 2 {
		t.Errorf("clouds with something to read are %+v %v", clouds, err)
	}
	claim := func(cloud domain.RemoteCloud, want domain.Connection) domain.RemoteRead {
		t.Helper()
		read, found, err := d.ClaimRead(t.Context(), cloud, usual, time.Minute)
		if err != nil || found != (want.ID != uuid.Nil) || read.Connection.ID != want.ID {
			t.Fatalf("got %s %t %v, want %s", read.Connection.ID, found, err, want.ID)
		}
		return read
	}
	first := claim(elsewhere, never)
	if !first.Since.IsZero() || !first.ScannedAt.IsZero() || first.At.IsZero() {
		t.Errorf("of one that was never read: %+v", first)
	}
	second := claim(elsewhere, old)
	claim(elsewhere, domain.Connection{})
	claim(domain.RemoteCloud{Region: "two"}, other)
	l.exec(t, "update connections set silent_since = now(), failures = 1 where id = $1", never.ID)
	noError(t, d.DoneRead(t.Context(), first, true))
	noError(t, d.ReleaseRead(t.Context(), second))
	claim(elsewhere, domain.Connection{}) // none is due so soon
	l.exec(t, `update instances set state = 'building', updated_at = now() where connection_id = $1
  and server_id is not null`, never.ID)
	l.exec(t, "update connections set read_at = read_at - interval '3 seconds'")
	again := claim(elsewhere, never)
	if !again.Since.Equal(first.At) || !again.ScannedAt.Equal(first.At) {
		t.Errorf("read again: %+v, want since %s", again, first.At)
	}
	l.exec(t, "update connections set claimed_until = now(), read_at = now() - interval '3 seconds' where id = $1",
		never.ID)
	third := claim(elsewhere, never) // the replica that claimed it before has died
	noError(t, d.DoneRead(t.Context(), again, true))
	noError(t, d.DoneRead(t.Context(), third, false))
	var since, scanned time.Time
	var failures int
	err := l.conn.QueryRow(t.Context(), "select read_since, swept_at, failures from connections where id = $1",
		never.ID).Scan(&since, &scanned, &failures)
	if err != nil || !since.Equal(third.At) || !scanned.Equal(first.At) || failures != 0 {
		t.Errorf("noted are %s, %s and %d failures, %v", since, scanned, failures, err)
	}
	l.exec(t, "update connections set read_at = null, not_before = now() + interval '1 minute' where id = $1", never.ID)
	claim(elsewhere, domain.Connection{}) // its cloud is left alone
}

// TestClaimReadsConcurrently by several replicas.
func TestClaimReadsConcurrently(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	const many = 6
	for range many {
		remote(t, l, elsewhere)
	}
	var mu sync.Mutex
	claimed := map[uuid.UUID]int{}
	concurrently(3, func(int) {
		for range many {
			read, found, err := d.ClaimRead(t.Context(), elsewhere, usual, time.Minute)
			if err != nil {
				t.Error(err)
			}
			if found {
				mu.Lock()
				claimed[read.Connection.ID]++
				mu.Unlock()
			}
		}
	})
	for id, times := range claimed {
		if times != 1 {
			t.Errorf("%s was claimed %d times", id, times)
		}
	}
	if len(claimed) != many {
		t.Errorf("%d of %d connections were claimed", len(claimed), many)
	}
}

// TestListStale lists instances in other clouds of connections that have ended, or were silent for long.
func TestListStale(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d := postgres.Delegations{DB: l.DB}
	ended, silent, fine := remote(t, l, elsewhere), remote(t, l, elsewhere), remote(t, l, elsewhere)
	if known, err := d.Instances(t.Context(), "p1", fine.ID); err != nil || len(known) != 1 || !known[0].Remote {
		t.Errorf("its instances are %+v %v", known, err)
	}
	l.exec(t, "update connections set status = 'lost' where id = $1", ended.ID)
	noError(t, d.MarkUnreachable(t.Context(), "p1", silent.ID, time.Second, time.Second))
	for silence, want := range map[time.Duration]int{time.Hour: 1, -time.Hour: 2} {
		found, err := d.ListStale(t.Context(), silence, 10)
		if err != nil || len(found) != want {
			t.Errorf("after %s: %+v %v", silence, found, err)
		}
	}
}

// TestListStaleDuringARead leaves out what a read has just seen, although the connection counts as unreachable until
// the read has ended.
func TestListStaleDuringARead(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	d, instances := postgres.Delegations{DB: l.DB}, postgres.Instances{DB: l.DB}
	c := remote(t, l, elsewhere)
	l.exec(t, `update connections set silent_since = now() - interval '10 minutes', failures = 3, not_before = null
where id = $1`, c.ID)
	l.exec(t, "update instances set state = 'active', seen_at = now() - interval '7 minutes' where connection_id = $1",
		c.ID)
	before, err := d.ListStale(t.Context(), 3*time.Minute, 100)
	if err != nil || len(before) == 0 {
		t.Fatal(before, err)
	}
	read, found, err := d.ClaimRead(t.Context(), elsewhere, usual, time.Minute)
	if err != nil || !found {
		t.Fatal(found, err)
	}
	seen := before[0]
	seen.State, seen.SeenAt = domain.InstanceStopped, read.At
	if n, err := instances.Change(t.Context(), []domain.Instance{seen}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	after, err := d.ListStale(t.Context(), 3*time.Minute, 100)
	if err != nil || len(after) != len(before)-1 {
		t.Errorf("%d are stale, and were %d before one was observed: %v", len(after), len(before), err)
	}
}
