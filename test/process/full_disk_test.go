package process_test

import (
	"net/http"
	"testing"
	"time"

	deliverevents "github.com/cloudfn/cloudfn/functions/deliver-events"
	pollinstances "github.com/cloudfn/cloudfn/functions/poll-instances"
	"github.com/cloudfn/cloudfn/functions/stats"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestFullDisk: when the request log cannot grow, the API answers 503, and servers are polled and events delivered.
// All resumes when there is room again. Postgres reports a full disk as this trigger does.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Pool(t, database)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`create function disk_full() returns trigger language plpgsql as
		$$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$`)
	exec("create trigger disk_full before insert on requests for each statement execute function disk_full()")
	app := testkit.Start(t, testkit.DaemonEnv(t, database), stats.Function, deliverevents.Function,
		pollinstances.Function)
	api := app.As(testkit.Token(t, "demo"))
	if a := api.Get(t, "/v1/stats"); a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("with a full disk: got %d %s", a.Status, a.Body)
	}
	receiver := testkit.NewSDKReceiver(t)
	secret := "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5"
	testkit.AddCallback(t, conn, "p", receiver.URL, domain.CallbackVerified, secret, "")
	testkit.AddEvents(t, conn, "p", []string{"019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"}, 1)
	for _, function := range []string{"deliver-events", "poll-instances"} {
		if a := app.Tick(t, function); a.Status/100 != 2 {
			t.Errorf("%s: got %d %s", function, a.Status, a.Body)
		}
	}
	testkit.Eventually(t, 10*time.Second, "the event is delivered", func() bool { return len(receiver.Events()) > 0 })
	exec("drop trigger disk_full on requests")
	if a := api.Get(t, "/v1/stats"); a.Status != http.StatusOK {
		t.Errorf("with room again: got %d %s", a.Status, a.Body)
	}
}
