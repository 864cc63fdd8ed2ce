package deliverevents

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongRepeatedKills: two replicas are killed every few seconds while things happen, and there is a receiver of each
// bad kind: the good ones get every event, in order, and repeats are the same.
func TestLongRepeatedKills(t *testing.T) {
	t.Parallel()
	const kills, rounds = 5, 12
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	key := secret()
	plain, signed := testkit.NewSDKReceiver(t), testkit.NewSignedReceiver(t, key)
	testkit.AddCallback(t, conn, project, plain.URL, domain.CallbackPending, secret(), "")
	testkit.AddCallback(t, conn, project, signed.URL, domain.CallbackPending, key, "")
	bad := testkit.BadReceivers(t)
	for r := range maps.Values(bad) {
		testkit.AddCallback(t, conn, project, r.URL, domain.CallbackPending, secret(), "")
	}
	vars := env(t, database)
	keepTicking(t, testkit.Spawn(t, vars))
	instances := subjects(20)
	for round := range rounds {
		testkit.AddEvents(t, conn, project, instances, 1)
		if round < kills {
			p := testkit.Spawn(t, vars)
			keepTicking(t, p)
			time.Sleep(time.Duration(300+250*round) * time.Millisecond) // any moment is a good one for a kill
			p.Kill()
		}
	}
	for _, r := range []*testkit.Receiver{plain, signed} {
		complete(t, time.Minute, r, instances, rounds)
	}
	for name, r := range bad {
		testkit.Eventually(t, time.Minute, fmt.Sprintf("the receiver that answers %q is tried", name),
			func() bool { return r.Posts() > 0 })
	}
	repeats := len(plain.Events()) + len(signed.Events()) - 2*len(instances)*rounds
	t.Logf("%d events came again", repeats)
}

// TestLongClaimOutlivesReplica: the work of a killed replica is free at the end of its claim, and not before. The test
// ends the claim as time would.
func TestLongClaimOutlivesReplica(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	hangs := testkit.BadReceivers(t)["hangs"]
	testkit.AddCallback(t, conn, project, hangs.URL, domain.CallbackVerified, secret(), "")
	testkit.AddEvents(t, conn, project, subjects(1), 1)
	p := testkit.Spawn(t, env(t, database, "CALLBACK_TIMEOUT", "2m", "EVENT_TIMEOUT", "5m"))
	keepTicking(t, p)
	testkit.Eventually(t, time.Minute, "the receiver gets the event", func() bool { return hangs.Posts() == 1 })
	p.Kill()
	if !testkit.Scalar[bool](t, conn, "select claimed_until > clock_timestamp() + interval '1 minute' from streams") {
		t.Error("the claim ends before the attempt would")
	}
	other := testkit.Spawn(t, env(t, database))
	for range 3 {
		if a := other.Tick(t, "deliver-events"); a.Status != 204 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	if n := hangs.Posts(); n != 1 {
		t.Errorf("during the claim the receiver got %d posts", n)
	}
	if _, err := conn.Exec(t.Context(), "update streams set claimed_until = clock_timestamp()"); err != nil {
		t.Fatal(err)
	}
	keepTicking(t, other)
	testkit.Eventually(t, time.Minute, "the receiver gets it again", func() bool { return hangs.Posts() == 2 })
}

// TestLongGoneReceiver: a replica that has to end releases its work, and its unfinished attempt is not counted.
func TestLongGoneReceiver(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	hangs := testkit.BadReceivers(t)["hangs"]
	testkit.AddCallback(t, conn, project, hangs.URL, domain.CallbackVerified, secret(), "")
	testkit.AddEvents(t, conn, project, subjects(1), 1)
	p := testkit.Spawn(t, env(t, database, "CALLBACK_TIMEOUT", "1m", "EVENT_TIMEOUT", "3s"))
	testkit.Eventually(t, time.Minute, "an attempt has begun, and its event has ended", func() bool {
		if a := p.Tick(t, "deliver-events"); a.Status != 204 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
		return hangs.Posts() > 0
	})
	attempts := testkit.Scalar[int](t, conn, "select attempts from deliveries")
	claimed := testkit.Scalar[int](t, conn, "select count(*)::int from streams where claim_id is not null")
	if attempts != 0 || claimed != 0 {
		t.Errorf("%d posts, %d attempts, %d claims", hangs.Posts(), attempts, claimed)
	}
}

// skipPauses makes all that waits due immediately, so that a test need not wait, too.
func skipPauses(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if _, err := conn.Exec(context.Background(),
		"update streams set next_at = now(); update callbacks set not_before = null"); err != nil {
		t.Fatal(err)
	}
}
