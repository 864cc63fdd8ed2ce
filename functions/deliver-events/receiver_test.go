package deliverevents

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// wake tolerates a failure, because the process may be killed meanwhile.
func wake(t *testing.T, p *testkit.Process) {
	t.Helper()
	a, err := p.Try(t, http.MethodPost, "/events/deliver-events", "", "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Type",
		eventx.WakeType,
		"Ce-Source", "/cloudfn/wake/deliver-events", "Ce-Cloudfnkey", p.Key)
	if err == nil && a.Status != 204 {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}

// TestWakeEvent: an event is delivered after a wake, also while the loop waits for receivers that hang. While a loop
// runs, an event is delivered without a wake. No attempt ends and no tick comes during the test, so nothing else can
// deliver the events.
func TestWakeEvent(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	key := secret()
	good, hangs := testkit.NewSignedReceiver(t, key), testkit.BadReceivers(t)["hangs"]
	testkit.AddCallback(t, conn, project, good.URL, domain.CallbackVerified, key, "")
	p := testkit.Spawn(t, env(t, database, "CALLBACK_TIMEOUT", "2m", "EVENT_TIMEOUT", "5m"))
	var looping sync.WaitGroup
	defer looping.Wait()
	defer p.Kill()
	for round, wakes := range []bool{true, true, false} {
		if round == 1 { // from here on a loop runs, for what hangs
			for range 3 {
				testkit.AddCallback(t, conn, project, hangs.URL, domain.CallbackVerified, secret(), "")
			}
			testkit.AddEvents(t, conn, project, subjects(1), 1)
			looping.Go(func() { wake(t, p) })
			testkit.Eventually(t, time.Minute, "three attempts hang", func() bool { return hangs.Posts() == 3 })
		}
		instance := subjects(1)
		testkit.AddEvents(t, conn, project, instance, 1)
		if wakes {
			looping.Go(func() { wake(t, p) })
		}
		complete(t, time.Minute, good, instance, 1)
	}
}

// TestRotation: while the new secret overlaps with the one before it, receivers with either verify; afterwards the new
// one alone signs.
func TestRotation(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	old, young, oldest := secret(), secret(), secret()
	slow, quick := testkit.NewSignedReceiver(t, old), testkit.NewSignedReceiver(t, young)
	slowest := testkit.NewSignedReceiver(t, oldest)
	for _, r := range []*testkit.Receiver{slow, quick} {
		testkit.AddCallback(t, conn, project, r.URL, domain.CallbackVerified, young, old)
	}
	late := testkit.AddCallback(t, conn, project, slowest.URL, domain.CallbackVerified, oldest, "")
	for _, next := range []string{old, young} { // two rotations
		if _, err := conn.Exec(t.Context(), `
update callbacks set older_secrets = case when previous_secret is null then '{}'
        else array_append(older_secrets, previous_secret) end,
    previous_secret = secret, previous_until = now() + interval '1 hour', secret = $2
where id = $1`, late, testkit.Sealed(t, project, late, next)); err != nil {
			t.Fatal(err)
		}
	}
	instances := subjects(3)
	testkit.AddEvents(t, conn, project, instances, 2)
	p := start(t, env(t, database))
	p.Tick(t, "deliver-events")
	complete(t, time.Second, slow, instances, 2)
	complete(t, time.Second, quick, instances, 2)
	complete(t, time.Second, slowest, instances, 2)
	if _, err := conn.Exec(t.Context(), "update callbacks set previous_until = now()"); err != nil {
		t.Fatal(err)
	}
	testkit.AddEvents(t, conn, project, instances, 1)
	p.Tick(t, "deliver-events")
	complete(t, time.Second, quick, instances, 3)
	if got, refused := len(slow.Events()), len(slow.Rejected()); got != 6 || refused == 0 {
		t.Errorf("with the old secret it took %d events and refused %d", got, refused)
	}
}

// TestBusy: a receiver that requests a pause gets it as a whole, and all its events after it.
func TestBusy(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	var posts atomic.Int64
	var busy *testkit.Receiver
	busy = testkit.NewReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		if posts.Add(1) == 1 {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		busy.TakeRequest(r)
	})
	testkit.AddCallback(t, conn, project, busy.URL, domain.CallbackVerified, secret(), "")
	p := start(t, env(t, database))
	first, others := subjects(1), subjects(5)
	testkit.AddEvents(t, conn, project, first, 1)
	p.Tick(t, "deliver-events")
	testkit.AddEvents(t, conn, project, others, 1)
	for range 2 {
		p.Tick(t, "deliver-events")
	}
	if n := posts.Load(); n != 1 {
		t.Errorf("within the hour it got %d posts, want 1", n)
	}
	skipPauses(t, conn)
	testkit.Eventually(t, time.Minute, "all are delivered", func() bool {
		p.Tick(t, "deliver-events")
		return len(busy.Events()) == 6
	})
	if n := posts.Load(); n != 7 {
		t.Errorf("it got %d posts, want 7", n)
	}
}

// TestRate: two replicas together keep the rate that a receiver consented to. After each delivery the test moves the
// receiver's pause into the past.
func TestRate(t *testing.T) {
	t.Parallel()
	const events = 4
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	slow := testkit.NewSDKReceiver(t)
	testkit.AddCallback(t, conn, project, slow.URL, domain.CallbackVerified, secret(), "")
	if _, err := conn.Exec(t.Context(), "update callbacks set allowed_rate = 1"); err != nil { // a minute
		t.Fatal(err)
	}
	testkit.AddEvents(t, conn, project, subjects(events), 1)
	replicas := []*testkit.Client{start(t, env(t, database)), start(t, env(t, database))}
	for n := range events {
		for range 2 {
			var both sync.WaitGroup
			for _, p := range replicas {
				both.Go(func() { p.Tick(t, "deliver-events") })
			}
			both.Wait()
		}
		if got := len(slow.Events()); got != n+1 {
			t.Errorf("in minute %d came %d events", n+1, got)
		}
		const pauses = "select not_before - served_at >= interval '1 minute' from callbacks"
		if !testkit.Scalar[bool](t, conn, pauses) {
			t.Error("the pause is shorter than a minute")
		}
		skipPauses(t, conn)
	}
}

// TestSinkGetsEveryEvent that happens in any project from when it is set, with the extensions of its own.
func TestSinkGetsEveryEvent(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	sink := testkit.NewSink(t, nil)
	p := start(t, env(t, database, "K_SINK", sink.URL, "K_CE_OVERRIDES", `{"extensions":{"cloud":"north"}}`))
	p.Tick(t, "deliver-events")
	pending := testkit.AddCallback(t, conn, project, testkit.NewSDKReceiver(t).URL, domain.CallbackPending,
		secret(), "")
	mine, theirs := subjects(5), subjects(5)
	testkit.AddEvents(t, conn, project, mine, 3)
	testkit.AddEvents(t, conn, "another", theirs, 3)
	p.Tick(t, "deliver-events")
	want := []string{pending.String() + ":1"}
	for _, s := range append(mine, theirs...) {
		want = append(want, s+":1", s+":2", s+":3")
	}
	slices.Sort(want)
	got := sink.IDs()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the sink got %v, want %v", got, want)
	}
	for _, e := range sink.Events() {
		if e.Extensions()["cloud"] != "north" {
			t.Errorf("no extension: %s", e)
		}
	}
}

// TestConsent: a receiver that does not consent gets nothing, is asked again, and is suspended in the end. A receiver
// without a handshake counts as one that consents only when the operator configures it.
func TestConsent(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	answers := map[string]struct {
		status         int
		origin         string
		must, optional domain.CallbackStatus
	}{
		"knows no such method":  {405, "", domain.CallbackPending, domain.CallbackVerified},
		"knows no such path":    {404, "", domain.CallbackPending, domain.CallbackVerified},
		"answers without it":    {200, "", domain.CallbackPending, domain.CallbackVerified},
		"forbids it":            {403, "", domain.CallbackPending, domain.CallbackPending},
		"fails":                 {500, "", domain.CallbackPending, domain.CallbackPending},
		"consents":              {200, "cloudfn", domain.CallbackVerified, domain.CallbackVerified},
		"consents to everybody": {204, "*", domain.CallbackVerified, domain.CallbackVerified},
	}
	ids := map[string]string{}
	for name, a := range answers {
		r := testkit.NewDecliningReceiver(t, func(w http.ResponseWriter) {
			if a.origin != "" {
				w.Header().Set("WebHook-Allowed-Origin", a.origin)
			}
			w.WriteHeader(a.status)
		})
		ids[name] = testkit.AddCallback(t, conn, project, r.URL, domain.CallbackPending, secret(), "").String()
	}
	check := func(mode string, want func(name string) domain.CallbackStatus) {
		for name, id := range ids {
			got := domain.CallbackStatus(testkit.Scalar[string](t, conn, "select status from callbacks where id = $1", id))
			reason := testkit.Scalar[string](t, conn, "select reason from callbacks where id = $1", id)
			if got != want(name) || (reason == "") != (got == domain.CallbackVerified) {
				t.Errorf("%s: one that %s is %s (%s), want %s", mode, name, got, reason, want(name))
			}
		}
	}
	must := start(t, env(t, database))
	must.Tick(t, "deliver-events")
	check("required", func(name string) domain.CallbackStatus { return answers[name].must })
	skipPauses(t, conn)
	may := start(t, env(t, database, "CALLBACK_HANDSHAKE", "optional"))
	may.Tick(t, "deliver-events")
	check("optional", func(name string) domain.CallbackStatus { return answers[name].optional })
	testkit.SetClock(t, database, time.Now().Add(73*time.Hour))
	start(t, env(t, database)).Tick(t, "deliver-events")
	check("after three days", func(name string) domain.CallbackStatus {
		if answers[name].optional == domain.CallbackPending {
			return domain.CallbackSuspended
		}
		return domain.CallbackVerified
	})
}

// TestMissingKey: a secret whose key the operator has lost suspends no callback and abandons no event, however long
// that lasts; all is delivered once the key is back.
func TestMissingKey(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	signs := secret()
	receiver := testkit.NewSignedReceiver(t, signs)
	id := testkit.AddCallback(t, conn, project, receiver.URL, domain.CallbackVerified, signs, "")
	instances := subjects(1)
	testkit.AddEvents(t, conn, project, instances, 2)
	lost := env(t, database)
	lost["SEAL_PUBLIC_KEY"], lost["SEAL_PRIVATE_KEY"] = testkit.ManagedPublicKey, testkit.ManagedPrivateKey
	without := start(t, lost)
	for range 3 {
		without.Tick(t, "deliver-events")
		if _, err := conn.Exec(t.Context(), `update streams set next_at = now(),
failing_since = failing_since - interval '30 days';
update callbacks set not_before = now(), failing_since = failing_since - interval '30 days'`); err != nil {
			t.Fatal(err)
		}
	}
	status := testkit.Scalar[string](t, conn, `select c.status || ' ' || c.failures || ' ' || d.status || ' ' || d.error
from callbacks c join deliveries d on d.callback_id = c.id where c.id = $1 order by d.seq limit 1`, id)
	const want = "verified 0 due waits for the operator: the secret that signs it cannot be decrypted"
	if status != want || receiver.Posts() != 0 {
		t.Errorf("got %q, want %q; %d requests", status, want, receiver.Posts())
	}
	start(t, env(t, database)).Tick(t, "deliver-events")
	complete(t, time.Second, receiver, instances, 2)

	// It was rotated, and the secret before it has another key: the one that can be decrypted signs.
	if _, err := conn.Exec(t.Context(), `update callbacks set previous_secret = '\x00', older_secrets = '{"\\x00"}',
previous_until = now() + interval '1 hour', not_before = null where id = $1`, id); err != nil {
		t.Fatal(err)
	}
	testkit.AddEvents(t, testkit.Pool(t, database), project, instances, 1)
	start(t, env(t, database)).Tick(t, "deliver-events")
	complete(t, time.Second, receiver, instances, 3)
}
