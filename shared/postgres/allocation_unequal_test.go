package postgres_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestBookingUnequalHosts: each of the clients of three processes gets one of as many hosts, although the hosts differ
// in size, so that all clients try the smallest one first.
func TestBookingUnequalHosts(t *testing.T) {
	t.Parallel()
	const clients = 48
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	addNodes(t, conn, clients)
	if _, err := conn.Exec(t.Context(), "update nodes set vcpus = 32 + right(name, 3)::int"); err != nil {
		t.Fatal(err)
	}
	var stores []postgres.Leases
	for range 3 {
		db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: clients / 3}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		stores = append(stores, postgres.Leases{DB: db})
	}
	var all sync.WaitGroup
	start := make(chan struct{})
	for n := range clients {
		made := newLease(0, 1)
		made.Lease.ProjectID = fmt.Sprintf("p%d", n)
		all.Go(func() {
			<-start
			if _, err := stores[n%3].Create(t.Context(), made); err != nil {
				t.Errorf("client %d: %v", n, err)
			}
		})
	}
	close(start)
	all.Wait()
	if n := testkit.Scalar[int](t, conn, overlapsSQL); n != 0 {
		t.Errorf("%d overlap", n)
	}
}
