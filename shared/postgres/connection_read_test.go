package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// elsewhere is the cloud of the connections of these tests.
var elsewhere = domain.RemoteCloud{AuthURL: "http://elsewhere.invalid/v3"}

var usual = domain.RemotePace{Usual: time.Minute, Moving: 2 * time.Second, Within: 10 * time.Minute}

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
	if _, err := l.Place(t.Context(), o, 0); err != nil {
		t.Fatal(err)
	}
	l.exec(t, "update instances set state = 'active', server_id = id::text where position = 0 and connection_id = $1",
		c.ID)
	return c
}

// TestReadsOfRemoteConnections: the one that was not read for the longest is claimed first, each by one replica, and is
// due again after the pace. A replica that was overtaken writes nothing.
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
	if !first.Since.IsZero() || !first.SweptAt.IsZero() || first.At.IsZero() {
		t.Errorf("of one that was never read: %+v", first)
	}
	second := claim(elsewhere, old)
	claim(elsewhere, domain.Connection{})
	claim(domain.RemoteCloud{Region: "two"}, other)
	l.exec(t, "update connections set silent_since = now(), failures = 1 where id = $1", never.ID)
	if err := d.DoneRead(t.Context(), first, true); err != nil {
		t.Fatal(err)
	}
	if err := d.ReleaseRead(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	claim(elsewhere, domain.Connection{}) // none is due so soon
	l.exec(t, `update instances set state = 'building', updated_at = now() where connection_id = $1
  and server_id is not null`, never.ID)
	l.exec(t, "update connections set read_at = read_at - interval '3 seconds'")
	again := claim(elsewhere, never)
	if !again.Since.Equal(first.At) || !again.SweptAt.Equal(first.At) {
		t.Errorf("read again: %+v, want since %s", again, first.At)
	}
	l.exec(t, "update connections set claimed_until = now(), read_at = now() - interval '3 seconds' where id = $1",
		never.ID)
	third := claim(elsewhere, never) // the replica that claimed it before has died
	if err := d.DoneRead(t.Context(), again, true); err != nil {
		t.Fatal(err)
	}
	if err := d.DoneRead(t.Context(), third, false); err != nil {
		t.Fatal(err)
	}
	var since, swept time.Time
	var failures int
	err := l.conn.QueryRow(t.Context(), "select read_since, swept_at, failures from connections where id = $1",
		never.ID).Scan(&since, &swept, &failures)
	if err != nil || !since.Equal(third.At) || !swept.Equal(first.At) || failures != 0 {
		t.Errorf("noted are %s, %s and %d failures, %v", since, swept, failures, err)
	}
	l.exec(t, "update connections set read_at = null, not_before = now() + interval '1 minute' where id = $1", never.ID)
	claim(elsewhere, domain.Connection{}) // its cloud is left alone
}

// TestClaimReadsConcurrently at once.
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
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
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
	}
	all.Wait()
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
	if err := d.MarkUnreachable(t.Context(), "p1", silent.ID, time.Second, time.Second); err != nil {
		t.Fatal(err)
	}
	for silence, want := range map[time.Duration]int{time.Hour: 1, -time.Hour: 2} {
		found, err := d.ListStale(t.Context(), silence, 10)
		if err != nil || len(found) != want {
			t.Errorf("after %s: %+v %v", silence, found, err)
		}
	}
}
