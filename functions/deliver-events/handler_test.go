package deliverevents

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

const project = "4f1c7e0c2b6f4f0e9c1f6f0f3a5f8d11"

// env is the environment of deliver-events alone. An attempt ends after 2 s, so that nothing takes long. An event works
// for 7 s at most, and so does not wait for the end of a pause, which takes 7.5 s at least.
func env(t *testing.T, database string, more ...string) map[string]string {
	t.Helper()
	vars := map[string]string{"FUNCTION_TARGET": "deliver-events", "CALLBACK_TIMEOUT": "2s", "EVENT_TIMEOUT": "14s"}
	for i := 0; i+1 < len(more); i += 2 {
		vars[more[i]] = more[i+1]
	}
	return testkit.Env(t, database, vars)
}

// start serves deliver-events in this process. Tests that kill a replica, or leave it waiting, spawn one instead.
func start(t *testing.T, env map[string]string) *testkit.Client {
	t.Helper()
	return testkit.Start(t, env, Function)
}

func subjects(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = uuid.NewString()
	}
	return list
}

func secret() string { return webhook.NewSecret().Reveal() }

// keepTicking ticks as long as the test runs, whatever the answers: the replica may be killed.
func keepTicking(t *testing.T, p *testkit.Process) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			_, _ = p.TryTick(t, "deliver-events")
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { close(stop); p.Kill(); <-done })
}

// complete waits until the receiver has n events of each subject.
func complete(t *testing.T, limit time.Duration, r *testkit.Receiver, subjects []string, n int) {
	t.Helper()
	counts := func() map[string]int {
		seen, counts := map[string]bool{}, map[string]int{}
		for _, e := range r.Events() {
			if !seen[e.ID] {
				seen[e.ID] = true
				counts[e.Subject]++
			}
		}
		return counts
	}
	testkit.Eventually(t, limit, fmt.Sprintf("%d events of each of %d subjects", n, len(subjects)), func() bool {
		got := counts()
		for _, s := range subjects {
			if got[s] < n {
				return false
			}
		}
		return true
	})
	r.InOrder(t)
}

func statusOf(t *testing.T, conn *pgx.Conn, callback uuid.UUID) domain.CallbackStatus {
	t.Helper()
	return domain.CallbackStatus(testkit.Scalar[string](t, conn, "select status from callbacks where id = $1", callback))
}

// TestEventsArrive at a receiver of the plain SDK and at one that verifies, in order, as they stand in the outbox.
func TestEventsArrive(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	key := secret()
	plain, signed := testkit.NewSDKReceiver(t), testkit.NewSignedReceiver(t, key)
	testkit.AddCallback(t, conn, project, plain.URL, domain.CallbackPending, secret(), "")
	testkit.AddCallback(t, conn, project, signed.URL, domain.CallbackPending, key, "")
	other := testkit.NewSDKReceiver(t)
	testkit.AddCallback(t, conn, "another", other.URL, domain.CallbackVerified, secret(), "")
	instances := subjects(10)
	testkit.AddEvents(t, conn, project, instances, 5)
	p := start(t, env(t, database))
	if a := p.Tick(t, "deliver-events"); a.Status != 204 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	for _, r := range []*testkit.Receiver{plain, signed} {
		complete(t, time.Second, r, instances, 5)
	}
	if n := len(other.Events()); n != 0 {
		t.Errorf("another project got %d events", n)
	}
	e := plain.Events()[0]
	want := testkit.Scalar[time.Time](t, conn, "select at from events where subject = $1 and seq = $2", e.Subject, e.Seq)
	if e.Type != domain.InstanceEvent || e.Source != "/cloudfn/projects/"+project || !e.Happened.Equal(want) ||
		!strings.Contains(e.Data, `"instance_id": "`+e.Subject+`"`) {
		t.Errorf("the event is %+v", e)
	}
	left := "select count(*)::int from deliveries where project_id = $1 and status <> 'delivered'"
	if n := testkit.Scalar[int](t, conn, left, project); n != 0 {
		t.Errorf("%d deliveries are not marked", n)
	}
	if n := testkit.Scalar[int](t, conn,
		"select count(*)::int from streams where claim_id is not null or head < tail and project_id <> 'another'"); n != 0 {
		t.Errorf("%d streams are claimed or not empty", n)
	}
}
