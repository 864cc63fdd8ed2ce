package console

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSessionWorksOnAllReplicas also when the replica that created it was killed. Signing out ends it everywhere, and
// its token.
func TestSessionWorksOnAllReplicas(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	env := testkit.Env(t, database, map[string]string{
		"FUNCTION_TARGET":  "console",
		"CONSOLE_UPSTREAM": "http://{function}.invalid",
	})
	first := testkit.Spawn(t, env)
	b := signInTo(t, first.Client, password(p, ""))
	first.Kill()
	second, third := testkit.Spawn(t, env), testkit.Spawn(t, env)
	conn := testkit.Connect(t, database)
	token := stored(t, database, b.cookie).Token
	for _, other := range []*testkit.Process{second, third} {
		b.Client = other.Client
		if a := b.send(t, "GET", "/console/session", ""); a.Status != 200 || !strings.Contains(string(a.Body), p.ID) {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	}
	kept := b.cookie
	if a := b.send(t, "DELETE", "/console/session", ""); a.Status != 204 || b.cookie != "" {
		t.Errorf("signing out: got %d %s", a.Status, a.Header)
	}
	b.Client, b.cookie = second.Client, kept
	for path, want := range map[string]int{"/console/session": 401, "/console/api/v1/servers": 401} {
		if a := b.send(t, "GET", path, ""); a.Status != want || !strings.HasPrefix(a.Header.Get("WWW-Authenticate"),
			"Keystone ") {
			t.Errorf("%s after signing out: got %d %s", path, a.Status, a.Body)
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from sessions"); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	if alive(t, token) {
		t.Error("the token is still good")
	}
	if a := b.send(t, "DELETE", "/console/session", ""); a.Status != 204 {
		t.Errorf("signing out again: got %d %s", a.Status, a.Body)
	}
	for row, want := range map[string]int{"POST 201": 1, "DELETE 204": 2} {
		sql := "select count(*)::int from requests where function = 'console' and path = '/console/session' and method || " +
			"' ' || status = $1"
		if n := testkit.Scalar[int](t, conn, sql, row); n != want {
			t.Errorf("%s has %d rows, want %d", row, n, want)
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from requests where project_id = $1 and user_id = $2", p.ID,
		p.UserID); n < 4 {
		t.Errorf("%d rows say who it was", n)
	}
}

// stored opens a session as only who has its cookie can.
func stored(t *testing.T, database, cookie string) domain.Session {
	t.Helper()
	key, err := keyOf(domain.Secret(cookie))
	if err != nil {
		t.Fatal(err)
	}
	sealed := testkit.Scalar[[]byte](t, testkit.Pool(t, database), "select sealed from sessions where id = $1", key.id)
	session, err := key.open(sealed)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Canary(session.Token.Reveal())
	return session
}

// alive validates with Keystone, through a replica that has not cached the token.
func alive(t *testing.T, token domain.Secret) bool {
	t.Helper()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	return (&browser{Client: app}).send(t, "POST", "/console/session",
		fmt.Sprintf(`{"token": %q}`, token.Reveal())).Status == 201
}

// TestSignOutKeepsGivenToken because others may use it.
func TestSignOutKeepsGivenToken(t *testing.T) {
	t.Parallel()
	token := testkit.BorrowProject(t).Token(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	b := signInTo(t, app, fmt.Sprintf(`{"token": %q}`, token))
	b.send(t, "DELETE", "/console/session", "")
	if !alive(t, domain.Secret(token)) {
		t.Error("it is not good any more")
	}
}

// TestSessionExpires with its token, after 12 hours at most. Later sign-ins delete expired sessions.
func TestSessionExpires(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	body := fmt.Sprintf(`{"token": %q}`, p.Token(t))
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	over, running := signInTo(t, app, body), signInTo(t, app, body)
	if n := testkit.Scalar[int](t, conn,
		"select count(*)::int from sessions where expires_at between now() + interval '1 minute' and now() + interval '12 "+
			"hours'"); n != 2 {
		t.Errorf("%d sessions end in time", n)
	}
	key, _ := keyOf(domain.Secret(over.cookie))
	if _, err := conn.Exec(t.Context(), "update sessions set expires_at = now() where id = $1", key.id); err != nil {
		t.Fatal(err)
	}
	if a := over.send(t, "GET", "/console/session", ""); a.Status != 401 {
		t.Errorf("a session that has expired: got %d %s", a.Status, a.Body)
	}
	signInTo(t, app, body)
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from sessions"); n != 2 {
		t.Errorf("there are %d sessions, want the two that are not over", n)
	}
	if a := running.send(t, "GET", "/console/session", ""); a.Status != 200 {
		t.Errorf("a session that is not over: got %d %s", a.Status, a.Body)
	}
}

// TestSignInReplacesSession ends the previous session, also that of another user.
func TestSignInReplacesSession(t *testing.T) {
	t.Parallel()
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	b := signInTo(t, app, password(p, ""))
	before, token := *b, stored(t, database, b.cookie).Token
	if a := b.send(t, "POST", "/console/session", `{"user": "x", "password": "y"}`); a.Status != 401 {
		t.Errorf("in vain: got %d", a.Status)
	}
	if a := before.send(t, "GET", "/console/session", ""); a.Status != 200 {
		t.Errorf("after someone tried in vain: got %d", a.Status)
	}
	if a := b.send(t, "POST", "/console/session", password(other, "")); a.Status != 201 {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if a := before.send(t, "GET", "/console/session", ""); a.Status != 401 {
		t.Errorf("the session before: got %d %s", a.Status, a.Body)
	}
	if alive(t, token) {
		t.Error("the token before is still good")
	}
}

// TestConcurrentSignOuts all succeed.
func TestConcurrentSignOuts(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	b := signInTo(t, app, password(p, ""))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			one := *b
			if a := one.send(t, "DELETE", "/console/session", ""); a.Status != 204 {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
		})
	}
	all.Wait()
	if n := testkit.Scalar[int](t, testkit.Pool(t, database), "select count(*)::int from sessions"); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// TestRejectsInvalidCookies and two cookies of the name, because one may be from another site.
func TestRejectsInvalidCookies(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	b := signInTo(t, app, fmt.Sprintf(`{"token": %q}`, p.Token(t)))
	own := cookieName + "=" + b.cookie
	for _, cookie := range []string{
		"", cookieName + "=", cookieName + "=x", own + "x", own + "=", own[:len(own)-1],
		own + "; " + own, own + "; " + cookieName + "=x",
	} {
		if a := app.Get(t, "/console/session", "Cookie", cookie); a.Status != 401 {
			t.Errorf("%d bytes: got %d %s", len(cookie), a.Status, a.Body)
		}
	}
	if a := app.Get(t, "/console/session", "Cookie", "other=1; "+own); a.Status != 200 {
		t.Errorf("beside another: got %d %s", a.Status, a.Body)
	}
}

// TestRejectsChangedSession and still lets its browser sign in and out.
func TestRejectsChangedSession(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	body := fmt.Sprintf(`{"token": %q}`, p.Token(t))
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	for method, want := range map[string]int{"POST": 201, "DELETE": 204} {
		mine, other := signInTo(t, app, body), signInTo(t, app, body)
		from, _ := keyOf(domain.Secret(other.cookie))
		to, _ := keyOf(domain.Secret(mine.cookie))
		if _, err := conn.Exec(t.Context(),
			"update sessions set sealed = (select sealed from sessions where id = $1) where id = $2", from.id,
			to.id); err != nil {
			t.Fatal(err)
		}
		if a := mine.send(t, "GET", "/console/session", ""); a.Status != 401 {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
		if a := mine.send(t, method, "/console/session", body); a.Status != want {
			t.Errorf("%s: got %d %s", method, a.Status, a.Body)
		}
	}
}

// TestSessionIsSealed only its cookie decrypts it, and a writer of the database cannot forge one.
func TestSessionIsSealed(t *testing.T) {
	t.Parallel()
	mine, err := keyOf(newCookie())
	if err != nil {
		t.Fatal(err)
	}
	other, err := keyOf(newCookie())
	if err != nil {
		t.Fatal(err)
	}
	want := domain.Session{Token: "token", Ours: true, Who: domain.Identity{
		UserID: "u", ProjectID: "p",
		Roles: []string{"member"}, ExpiresAt: time.Unix(1, 0).UTC(),
	}}
	sealed, err := mine.seal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := mine.open(sealed)
	if err != nil || got.Token != want.Token || !got.Ours || got.Who.UserID != "u" || got.Who.ProjectID != "p" ||
		!got.Who.ExpiresAt.Equal(want.Who.ExpiresAt) {
		t.Errorf("%v %+v", err, got)
	}
	again, _ := mine.seal(want)
	for name, open := range map[string]func() error{
		"another cookie": func() error { _, err := other.open(sealed); return err },
		"another row":    func() error { _, err := sessionKey{other.id, mine.aead}.open(sealed); return err },
		"nothing":        func() error { _, err := mine.open(nil); return err },
		"a changed byte": func() error { again[len(again)-1] ^= 1; _, err := mine.open(again); return err },
	} {
		if err := open(); apperr.CodeOf(err) != apperr.Unauthenticated {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// serviceOf is the service alone, with a real database.
func serviceOf(t *testing.T, database string) service {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return newService(postgres.Sessions{DB: db}, nil, nil, time.Hour)
}

// TestSignInWhenOldSessionStays: the new session's cookie is sent also when the old session cannot be ended.
func TestSignInWhenOldSessionStays(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	body := fmt.Sprintf(`{"token": %q}`, testkit.BorrowProject(t).Token(t))
	b := signInTo(t, app, body)
	_, err := testkit.Connect(t, database).Exec(t.Context(), `
create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;
create trigger refuse before delete on sessions for each row execute function refuse()`)
	if err != nil {
		t.Fatal(err)
	}
	before := b.cookie
	if a := b.send(t, "POST", "/console/session", body); a.Status != 201 || b.cookie == before {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	if a := b.send(t, "GET", "/console/session", ""); a.Status != 200 {
		t.Errorf("the new session: got %d %s", a.Status, a.Body)
	}
}

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
	if a := first.send(t, "DELETE", all, ""); a.Status != 204 || first.cookie != "" {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	for name, tc := range map[string]struct {
		b    *browser
		want int
	}{"this one": {&was, 401}, "in another browser": {second, 401}, "another user's": {others, 200}} {
		if a := tc.b.send(t, "GET", "/console/session", ""); a.Status != tc.want {
			t.Errorf("%s: got %d %s, want %d", name, a.Status, a.Body, tc.want)
		}
	}
	if a := second.send(t, "DELETE", all, ""); a.Status != 401 {
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
