package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSwitchProject: a user who has signed in with a password or a token chooses among the own projects that are served
// here. The old session and its token end; a token that the user gave stays.
func TestSwitchProject(t *testing.T) {
	t.Parallel()
	p, second, strange, closed := testkit.BorrowProject(t), testkit.BorrowProject(t), testkit.BorrowProject(t),
		testkit.BorrowProject(t)
	second.Grant(t, p.UserID, "member")
	closed.Grant(t, p.UserID, "member")
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{
		"ALLOWED_PROJECTS": strings.Join([]string{p.ID, second.ID, strange.ID}, ","),
	}), Function)
	change := func(b *browser, id string, header ...string) testkit.Answer {
		return b.send(t, "PATCH", "/console/session", fmt.Sprintf(`{"project_id": %q}`, id), header...)
	}
	given := p.Token(t)
	for _, body := range []string{
		password(p, fmt.Sprintf(`, "project": %q`, p.Name)), fmt.Sprintf(`{"token": %q}`, given),
	} {
		b := signInTo(t, app, body)
		var list Projects
		b.send(t, "GET", "/console/session/projects", "").JSON(t, &list)
		want := []Named{{p.ID, p.Name}, {second.ID, second.Name}}
		slices.SortFunc(want, func(a, b Named) int { return strings.Compare(a.Name, b.Name) })
		if !slices.Equal(list.Projects, want) {
			t.Errorf("the projects are %v, want %v", list.Projects, want)
		}
		for name, refused := range map[string]testkit.Answer{
			"of others":  change(b, strange.ID),
			"not served": change(b, closed.ID),
			"unknown":    change(b, "nothing"),
		} {
			if refused.Status != 400 || !testkit.Names(t, refused, "project_id") ||
				!strings.Contains(string(refused.Body), second.ID) {
				t.Errorf("%s: got %d %s", name, refused.Status, refused.Body)
			}
		}
		if a := change(b, second.ID, userHeader, p.UserID+"/"+second.ID); a.Status != 401 {
			t.Errorf("of a page that shows another project: got %d %s", a.Status, a.Body)
		}
		if a := b.Do(t, "PATCH", "/console/session", fmt.Sprintf(`{"project_id": %q}`, second.ID), "Content-Type",
			"application/json", "Cookie", cookieName+"="+b.cookie); a.Status != 403 {
			t.Errorf("of another site's page: got %d %s", a.Status, a.Body)
		}
		old, first := b.cookie, stored(t, database, b.cookie)
		var made Session
		a := change(b, second.ID, userHeader, p.UserID+"/"+p.ID)
		if a.JSON(t, &made); a.Status != 200 || made.Project.ID != second.ID || made.User.ID != p.UserID ||
			b.cookie == old {
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
		now := stored(t, database, b.cookie)
		if !now.Ours || now.Who.ProjectID != second.ID || now.Who.ExpiresAt.After(first.Who.ExpiresAt) ||
			!alive(t, now.Token) || alive(t, first.Token) == first.Ours {
			t.Errorf("the session is %+v after %+v", now.Who, first.Who)
		}
		kept := b.cookie
		b.cookie = old
		if a := b.send(t, "GET", "/console/session", ""); a.Status != 401 {
			t.Errorf("the old session: got %d %s", a.Status, a.Body)
		}
		b.cookie = kept
		if a := change(b, p.ID); a.Status != 200 { // and back
			t.Errorf("back: got %d %s", a.Status, a.Body)
		}
	}
	id, secret := p.AppCredential(t)
	b := signInTo(t, app, fmt.Sprintf(`{"token": %q}`, p.AppCredentialToken(t, id, secret)))
	// Keystone makes no other token of it: some releases say so, others answer 500.
	if a := change(b, second.ID); a.Status != 403 && a.Status != 503 {
		t.Errorf("of an application credential: got %d %s", a.Status, a.Body)
	}
	if a := b.send(t, "GET", "/console/session", ""); a.Status != 200 {
		t.Errorf("after a refusal: got %d %s", a.Status, a.Body)
	}
}

// TestConcurrentSwitches: of two requests with one cookie one switches. The other gets 401, and has made no session.
func TestConcurrentSwitches(t *testing.T) {
	t.Parallel()
	p, second := testkit.BorrowProject(t), testkit.BorrowProject(t)
	second.Grant(t, p.UserID, "member")
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	b := signInTo(t, app, password(p, fmt.Sprintf(`, "project": %q`, p.Name)))
	first := stored(t, database, b.cookie)
	conn := testkit.Connect(t, database)
	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "select from sessions for update")
	}
	if err != nil {
		t.Fatal(err)
	}
	browsers, statuses := []browser{*b, *b}, make([]int, 2)
	var both sync.WaitGroup
	for n := range browsers {
		both.Go(func() {
			statuses[n] = browsers[n].send(t, "PATCH", "/console/session", fmt.Sprintf(`{"project_id": %q}`, second.ID)).Status
		})
	}
	testkit.Eventually(t, time.Minute, "both wait for the session", func() bool {
		return testkit.Scalar[int](t, testkit.Pool(t, database), `select count(*)::int from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'`) == 2
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	both.Wait()
	won := slices.Index(statuses, 200)
	if won < 0 || statuses[1-won] != 401 || browsers[1-won].cookie != b.cookie {
		t.Fatalf("got %v, want 200 once, and 401", statuses)
	}
	if now := stored(t, database, browsers[won].cookie); now.Who.ProjectID != second.ID || !alive(t, now.Token) ||
		alive(t, first.Token) {
		t.Errorf("the session is %+v", now.Who)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from sessions"); n != 1 {
		t.Errorf("there are %d sessions, want one", n)
	}
}

// revoked is a Keystone that gives one token, and notes which are revoked.
type revoked struct {
	keystone
	tokens []domain.Secret
}

func (*revoked) ProjectsOf(context.Context, domain.Secret) ([]domain.Project, error) {
	return []domain.Project{{ID: "p2"}}, nil
}

func (*revoked) Choose(context.Context, domain.Secret, string) (domain.Secret, domain.Identity, error) {
	return "new", domain.Identity{UserID: "u", ProjectID: "p2", ExpiresAt: time.Now().Add(time.Hour)}, nil
}

func (r *revoked) Revoke(_ context.Context, token domain.Secret) error {
	r.tokens = append(r.tokens, token)
	return nil
}

// TestSwitchRevokes the old token once the new session is stored, and the new token when the old session has ended
// meanwhile.
func TestSwitchRevokes(t *testing.T) {
	t.Parallel()
	s, cloud := serviceOf(t, testkit.Database(t)), &revoked{}
	s.cloud, s.admit = cloud, func(domain.Identity) error { return nil }
	cookie, old, err := s.start(t.Context(), domain.Session{Token: "old", Ours: true, Who: domain.Identity{
		UserID: "u", ProjectID: "p1", ExpiresAt: time.Now().Add(time.Hour),
	}}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		code    apperr.Code
		revoked []domain.Secret
	}{{"", []domain.Secret{"old"}}, {apperr.Unauthenticated, []domain.Secret{"old", "new"}}} {
		_, made, err := s.Switch(t.Context(), cookie, old, "p2")
		if (err == nil) != (step.code == "") || err != nil && apperr.CodeOf(err) != step.code ||
			!slices.Equal(cloud.tokens, step.revoked) {
			t.Errorf("%+v, %v; revoked: %d", made.Who, err, len(cloud.tokens))
		}
	}
}
