package postgres_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// queries counts the queries of a pool.
type queries struct{ atomic.Int32 }

func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	q.Add(1)
	return ctx
}

func (q *queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestListCountsTogether: a page takes two queries, however many connections it has, and each has its own counts.
func TestListCountsTogether(t *testing.T) {
	t.Parallel()
	count, url := &queries{}, testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 4}, count)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	store, conn := postgres.Connections{DB: db}, testkit.Connect(t, url)
	const pages = 20
	for n := range pages {
		c := newConnection()
		if _, err := store.Create(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		_, err := conn.Exec(t.Context(), `
insert into instances (project_id, id, position, name, state, origin, server_id, connection_id, spec)
select 'p1', gen_random_uuid(), 0, 'x', 'active', 'launched', gen_random_uuid(), $1, '{"vcpus": 2, "ram_mb": 512}'
from generate_series(1, $2::int)`, c.ID, n)
		if err != nil {
			t.Fatal(err)
		}
	}
	before := count.Load()
	who := domain.Identity{ProjectID: "p1", UserID: "u1", WriteRoles: []string{"member"}}
	found, err := store.List(t.Context(), who, domain.ConnectionQuery{Limit: 100, Marker: uuid.Nil})
	if got := count.Load() - before; err != nil || len(found) != pages || got != 2 {
		t.Fatalf("%d connections took %d queries: %v", len(found), got, err)
	}
	for n, c := range found {
		if want := (domain.Need{Instances: n, VCPUs: 2 * n, RAMMB: 512 * n}); c.Used != want {
			t.Errorf("connection %d: got %+v", n, c.Used)
		}
	}
}
