package postgres_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLeaseAndDeletionRace: of a lease that names a connection, and the connection's end, that begin at the same time,
// one is refused, whichever commits first.
func TestLeaseAndDeletionRace(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, watch := testkit.Connect(t, database), testkit.Connect(t, database)
	connections := postgres.Connections{DB: open(t, database)}
	for name, tc := range map[string]struct {
		first string // in a transaction of another replica
		then  func(postgres.Leases, domain.Lease) error
	}{
		"the lease is first": {
			`insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end, connection_id,
    shares_connection)
select project_id, gen_random_uuid(), 'd', 'u', 'l', 'pending', now(), now() + interval '1 h', 'shelve', id, true
from connections where id = $1`,
			func(_ postgres.Leases, l domain.Lease) error {
				_, err := connections.Delete(t.Context(), "p1", l.ConnectionID)
				return err
			},
		},
		"the end is first": {
			"update connections set status = 'deleted' where id = $1",
			func(s postgres.Leases, l domain.Lease) error {
				_, err := s.Create(t.Context(), domain.NewLease{Lease: l})
				return err
			},
		},
		"less is permitted first": {
			"update connections set actions = '{start}' where id = $1",
			func(s postgres.Leases, l domain.Lease) error {
				_, err := s.Create(t.Context(), domain.NewLease{Lease: l})
				return err
			},
		},
	} {
		wide := newConnection()
		wide.Actions = []domain.Permission{domain.MayStart, domain.MayStop, domain.MayShelve}
		c := storedConnection(t, connections, wide)
		lease := newLease(0, 1).Lease
		lease.Reservations, lease.ConnectionID, lease.SharesConnection = nil, c.ID, true
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{"select from connections where id = $1 for share", tc.first} {
			if _, err := tx.Exec(t.Context(), sql, c.ID); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		go func() { done <- tc.then(postgres.Leases(connections), lease) }()
		testkit.Eventually(t, 10*time.Second, "the other waits", func() bool {
			return testkit.Scalar[bool](t, watch, `
select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
		})
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
