package testkit

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// What a replica leaves of a request with an Idempotency-Key when it dies, or works on it.
const (
	Died    = "clock_timestamp() - interval '1 second'" // before it stored the response; its claim has ended
	AtWork  = "clock_timestamp() + interval '1 minute'"
	noReply = "update idempotency_keys set response = null, claim_id = gen_random_uuid(), claimed_until = "
)

// UseUp has every source of a rate limit that has counted a request exceed it.
func UseUp(t testing.TB, conn *pgx.Conn, limit string) {
	t.Helper()
	const sql = "update rate_limits set used_up = clock_timestamp() + interval '30 minutes' where name = $1"
	if n := must(conn.Exec(t.Context(), sql, limit))(t).RowsAffected(); n == 0 {
		t.Fatalf("the limit %s has counted nothing", limit)
	}
}

// LeaveRequests makes all requests with an Idempotency-Key what a replica leaves of them.
func LeaveRequests(t testing.TB, conn *pgx.Conn, state string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), noReply+state); err != nil {
		t.Fatal(err)
	}
}
