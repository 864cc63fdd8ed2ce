package console

import (
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSignOutEverywhere ends all sessions of the user whom the page shows, and no others.
func TestSignOutEverywhere(t *testing.T) {
	t.Parallel()
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	first, second := signInTo(t, app, password(p, "")), signInTo(t, app, password(p, ""))
	others := signInTo(t, app, password(other, ""))
	token := stored(t, database, first.cookie).Token
	const all = "/console/session?all=true"
	if a := app.Do(t, "DELETE", all, "", "Cookie", cookieName+"="+first.cookie); a.Status != 403 {
		t.Errorf("another site's page: got %d %s", a.Status, a.Body)
	}
	if a := app.Do(t, "DELETE", all, "", append(fromPage, "Cookie", cookieName+"="+first.cookie,
		userHeader, other.UserID+"/"+other.ID)...); a.Status != 401 {
		t.Errorf("another user's page: got %d %s", a.Status, a.Body)
	}
	was := *first
	if a := first.ask(t, "DELETE", all, ""); a.Status != 204 || first.cookie != "" {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	for name, tc := range map[string]struct {
		b    *browser
		want int
	}{"this one": {&was, 401}, "in another browser": {second, 401}, "another user's": {others, 200}} {
		if a := tc.b.ask(t, "GET", "/console/session", ""); a.Status != tc.want {
			t.Errorf("%s: got %d %s, want %d", name, a.Status, a.Body, tc.want)
		}
	}
	if a := second.ask(t, "DELETE", all, ""); a.Status != 401 {
		t.Errorf("without a session: got %d %s", a.Status, a.Body)
	}
	if alive(t, token) {
		t.Error("the token is still good")
	}
}

// TestIdleSession ends although its page keeps reading, and what its user does keeps it alive.
func TestIdleSession(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"CONSOLE_IDLE": "30m"}), Function)
	b := signInTo(t, app, password(p, ""))
	conn := testkit.Connect(t, database)
	after20Minutes := func(header string) int {
		t.Helper()
		_, err := conn.Exec(t.Context(), "update sessions set used_at = used_at - interval '20 minutes'")
		if err != nil {
			t.Fatal(err)
		}
		return app.Get(t, "/console/session", "Cookie", cookieName+"="+b.cookie, pageHeader, header).Status
	}
	for n, step := range []struct {
		header string
		want   int
	}{{"1", 200}, {"1", 200}, {refresh, 200}, {refresh, 401}} {
		if got := after20Minutes(step.header); got != step.want {
			t.Errorf("step %d, %s: got %d, want %d", n+1, step.header, got, step.want)
		}
	}
}

// TestIdleConfig: a use is written once a minute, so less than some minutes would end sessions that are used.
func TestIdleConfig(t *testing.T) {
	t.Parallel()
	for idle, isGood := range map[time.Duration]bool{
		5 * time.Minute: true, 12 * time.Hour: true, 4 * time.Minute: false, 13 * time.Hour: false, 0: false,
	} {
		if err := (Config{Idle: idle, SignIns: 1}).Validate(); (err == nil) != isGood {
			t.Errorf("%s: %v", idle, err)
		}
	}
}
