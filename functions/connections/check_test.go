package connections

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestCheck plays run-connections, so that each result of a check comes when the test needs it.
func TestCheck(t *testing.T) {
	t.Parallel()
	app, conn, database, woken := started(t, nil)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	delegations := postgres.Delegations{DB: db}
	owner, actor, stranger := testkit.BorrowProject(t), testkit.BorrowProject(t), testkit.BorrowProject(t)
	app = app.As(owner.Token(t))
	c := create(t, app, asking("trust", fmt.Sprintf(`, "usable_by": [%q]`, actor.UserID)))
	path := "/v1/connections/" + c.ID.String() + "/check"
	if a := app.As(stranger.Token(t)).Post(t, path, ""); a.Status != http.StatusNotFound {
		t.Errorf("a stranger: %d %s", a.Status, a.Body)
	}
	// answer has find called a moment after the request, and gives what is answered.
	answer := func(who *testkit.Client, find func() error) (testkit.Answer, ConnectionCheck) {
		t.Helper()
		timer := time.AfterFunc(time.Second, func() {
			if err := find(); err != nil {
				t.Error(err)
			}
		})
		defer timer.Stop()
		a := who.Post(t, path, "")
		var found ConnectionCheck
		if a.Status < 300 {
			a.JSON(t, &found)
		}
		return a, found
	}
	now := func() time.Time {
		asked, err := db.Now(t.Context())
		if err != nil {
			t.Error(err)
		}
		return asked
	}
	accepts := func() error {
		return delegations.MarkChecked(t.Context(), owner.ID, c.ID, now(), []string{"member", "reader"})
	}

	a, found := answer(app, accepts)
	if a.Status != http.StatusOK || found.Works == nil || !*found.Works || found.ActsAs == nil ||
		!slices.Equal(found.Roles, []string{"member", "reader"}) ||
		!found.EndsAt.Equal(c.EndsAt) || found.CheckedAt.Before(c.CheckedAt.Time) ||
		woken.Count("run-connections") == 0 {
		t.Errorf("the owner: %d %+v", a.Status, found)
	}
	a, found = answer(app.As(actor.Token(t)), accepts)
	if a.Status != http.StatusOK || found.Works == nil || !*found.Works || found.ActsAs != nil ||
		len(found.Roles) != 2 {
		t.Errorf("whoever may act through it: %d %+v", a.Status, found)
	}
	a, found = answer(app, func() error { return nil })
	if a.Status != http.StatusAccepted || found.Works != nil || a.Header.Get("Retry-After") != "5" {
		t.Errorf("without an answer: %d %s", a.Status, a.Body)
	}
	a, _ = answer(app, func() error {
		return delegations.MarkUnchecked(t.Context(), owner.ID, c.ID, now(), "keystone cannot be reached")
	})
	if a.Status != http.StatusServiceUnavailable ||
		!strings.Contains(string(a.Body), "its cloud does not answer: keystone cannot be reached") {
		t.Errorf("a cloud that is away: %d %s", a.Status, a.Body)
	}
	a, found = answer(app, func() error {
		_, err := postgres.Connections{DB: db}.End(t.Context(), owner.ID, c.ID, domain.ConnectionLost, "because", true)
		return err
	})
	if a.Status != http.StatusOK || found.Works == nil || *found.Works || found.Status != domain.ConnectionLost ||
		found.Reason != "because" {
		t.Errorf("a lost one: %d %+v", a.Status, found)
	}
	before := testkit.Scalar[time.Time](t, conn, "select next_check_at from connections")
	if a := app.Post(t, path, ""); a.Status != http.StatusOK {
		t.Errorf("a lost one, later: %d %s", a.Status, a.Body)
	}
	if after := testkit.Scalar[time.Time](t, conn, "select next_check_at from connections"); !after.Equal(before) {
		t.Error("a lost one is checked")
	}
}
