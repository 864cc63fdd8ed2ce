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

// LeaveRequests makes all requests with an Idempotency-Key what a replica leaves of them.
func LeaveRequests(t testing.TB, conn *pgx.Conn, state string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), noReply+state); err != nil {
		t.Fatal(err)
	}
}
