package runconnections

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestChoresDelayNoAction: an action is done while all chores fail, and while all hang. The event reports the failures,
// and ends when the chores have.
func TestChoresDelayNoAction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	failure := errors.New("no room on the disk")
	for _, hangs := range []bool{false, true} {
		nova, s := w.withFailingNova()
		nova.server = domain.Server{ID: "s", Status: "SHUTOFF"}
		id := uuid.New()
		w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id)
  values ($1, $2, 0, 'x', 's', 'stopped', 'launched', $3)`, w.ID, id, c.ID)
		a := w.act(t, c, id, domain.ActionRequest{Action: domain.Stop}, nil)
		released := make(chan struct{})
		for n := range s.chores {
			s.chores[n].do = func(ctx context.Context, _ *batch, _ time.Time) error {
				if !hangs {
					return failure
				}
				<-released
				return ctx.Err()
			}
		}
		ended := make(chan error, 1)
		go func() { ended <- s.Run(t.Context()) }()
		testkit.Eventually(t, time.Minute, "the action is done", func() bool {
			return w.action(t, a).Status == domain.ActionDone
		})
		close(released)
		if err := <-ended; errors.Is(err, failure) == hangs || hangs && err != nil {
			t.Errorf("with chores that hang: %t, the event ends with %v", hangs, err)
		}
		w.exec(t, "delete from instances where id = $1", id)
	}
}

// TestUnreadWorkFailsTheEvent: an event that could not read what is due is not acknowledged, so that it is repeated.
func TestUnreadWorkFailsTheEvent(t *testing.T) {
	t.Parallel()
	for what, fault := range map[string]string{
		"orders": "alter table orders rename updated_at to changed_at", // the list is sorted by it
		"actions": `create function refuse() returns trigger language plpgsql as
    'begin raise exception ''the disk of actions is full'' using errcode = ''53100''; end';
create trigger refuse before update on actions for each row execute function refuse()`,
	} {
		w := fakes(t)
		c := w.remote(t, newFakeCloud(t))
		_, s := w.withFailingNova()
		id := uuid.New()
		w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id)
  values ($1, $2, 0, 'x', 's', 'stopped', 'launched', $3)`, w.ID, id, c.ID)
		w.act(t, c, id, domain.ActionRequest{Action: domain.Stop}, nil)
		w.exec(t, fault)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		untilFailed := func(ctx context.Context, b *batch, _ time.Time) error {
			for !b.hasFailed() && ctx.Err() == nil {
				time.Sleep(5 * time.Millisecond)
			}
			cancel() // else the event goes on while work is due
			return nil
		}
		s.chores = []chore{{"until failed", time.Hour, untilFailed}}
		if err := s.Run(ctx); err == nil || !strings.Contains(err.Error(), what+" of connection "+c.ID.String()) {
			t.Errorf("%s: the event ends with %v", what, err)
		}
		cancel()
	}
}

func (b *batch) hasFailed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.errs) > 0
}

// TestRequestsExpire with an event that is delivered immediately, and are forgotten in time.
func TestRequestsExpire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	woken := 0
	s := newService(w.db, func(...string) { woken++ })
	stored, err := s.requests.Create(t.Context(), domain.ConnectionRequest{
		ID: uuid.Must(uuid.NewV7()), ProjectID: w.ID, Requester: domain.Identity{UserID: "u2", ProjectID: "p2"},
		Grantee: domain.GranteeUser, Why: "x",
		Terms: domain.Terms{Actions: []domain.Permission{domain.MayStart}, Duration: time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	for n, sql := range []string{"select", "update connection_requests set expires_at = clock_timestamp()", "select"} {
		w.exec(t, sql)
		if err := s.expireRequests(t.Context()); err != nil || woken != min(n, 1) {
			t.Errorf("woken %d times after %d: %v", woken, n, err)
		}
	}
	if status := w.text(t, "select status from connection_requests where id = $1", stored.ID); status != "expired" {
		t.Errorf("it is %s", status)
	}
}
