package deliverevents

import (
	"context"
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
	var killed time.Duration
	for round := range rounds {
		testkit.AddEvents(t, conn, project, instances, 1)
		if round < kills {
			p := testkit.Spawn(t, vars)
			keepTicking(t, p)
			began := time.Now()
			time.Sleep(time.Duration(300+250*round) * time.Millisecond)
			p.Kill()
			killed += time.Since(began)
		}
	}
	for _, r := range []*testkit.Receiver{plain, signed} {
		complete(t, time.Minute, r, instances, rounds)
	}
	for name, r := range bad {
		if r.Posts() == 0 {
			t.Errorf("the receiver that answers %q was never tried, so this proves nothing", name)
		}
	}
	repeats := len(plain.Events()) + len(signed.Events()) - 2*len(instances)*rounds
	t.Logf("%d events came again, %s of a second replica", repeats, killed)
}

// TestLongClaimOutlivesReplica: the work of a killed replica is free at the end of its claim, and not before.
func TestLongClaimOutlivesReplica(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	hangs := testkit.BadReceivers(t)["hangs"]
	testkit.AddCallback(t, conn, project, hangs.URL, domain.CallbackVerified, secret(), "")
	testkit.AddEvents(t, conn, project, subjects(1), 1)
	p := testkit.Spawn(t, env(t, database, "CALLBACK_TIMEOUT", "3s"))
	keepTicking(t, p)
	testkit.Eventually(t, 10*time.Second, "the receiver is asked", func() bool { return hangs.Posts() == 1 })
	p.Kill()
	killed := time.Now()
	keepTicking(t, testkit.Spawn(t, env(t, database)))
	testkit.Eventually(t, 20*time.Second, "it is asked again", func() bool { return hangs.Posts() == 2 })
	if took := time.Since(killed); took < 4*time.Second {
		t.Errorf("the claim had ended after %s", took)
	}
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
	if a := p.Tick(t, "deliver-events"); a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	attempts := testkit.Scalar[int](t, conn, "select attempts from deliveries")
	claimed := testkit.Scalar[int](t, conn, "select count(*)::int from streams where claim_id is not null")
	if hangs.Posts() == 0 || attempts != 0 || claimed != 0 {
		t.Errorf("%d posts, %d attempts, %d claims", hangs.Posts(), attempts, claimed)
	}
}

// skipPauses makes all that waits due at once, so that a test need not wait, too.
func skipPauses(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if _, err := conn.Exec(context.Background(),
		"update streams set next_at = now(); update callbacks set not_before = null"); err != nil {
		t.Fatal(err)
	}
}
