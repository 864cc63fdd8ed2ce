package runconnections

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// failing is a Nova that accepts a deletion and then fails to delete the server. The sandbox's Nova never does that,
// because its hypervisor is a fake.
type failing struct {
	session
	server  domain.Server
	deleted int
}

func (f *failing) Server(context.Context, string) (domain.Server, error) { return f.server, nil }

func (f *failing) DeleteServer(context.Context, string) error {
	f.deleted++
	return nil
}

// withFailingNova returns a service whose session of the connection is a failing Nova.
func (w *world) withFailingNova(c domain.Connection) (*failing, *service) {
	nova := &failing{}
	s := newService(w.db, func(...string) {})
	e := s.cloud.entry(c.ID)
	e.update(c)
	e.session = nova
	return nova, s
}

// TestLongFailedDeletion: the action fails with Nova's own message, and Nova is not called over and over, whether it
// gives a reason or not. A fault older than the action does not prevent the call.
func TestLongFailedDeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	id := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id)
  values ($1, $2, 0, 'x', 's', 'active', 'launched', $3)`, w.ID, id, c.ID)
	nova, s := w.withFailingNova(c)
	for name, tc := range map[string]struct {
		fault, age time.Duration // since the action was asked for, and of the action
		tries      int           // of the deletion
		words      string
		calls      int
	}{
		"an older fault":         {-time.Minute, 0, 0, "", 1},
		"the fault of something": {time.Minute, 0, 0, "", 1},
		"its own fault":          {time.Minute, 0, 1, "out of volumes", 0},
		"no end":                 {-time.Minute, retryFor + time.Minute, 0, "within 1h0m0s", 1},
	} {
		a := w.ask(t, c, id, domain.ActionRequest{Action: domain.Delete}, nil)
		a.CreatedAt = a.CreatedAt.Add(-tc.age)
		nova.deleted = 0
		w.exec(t, "update instances set delete_tries = $2, delete_tried_at = now() + interval '1 second' where id = $1",
			id, tc.tries)
		nova.server = domain.Server{
			ID: "s", Status: "ERROR",
			Fault: &domain.Fault{Message: "out of volumes", Created: a.CreatedAt.Add(tc.fault)},
		}
		done, err := s.step(t.Context(), c, &a)
		said := ""
		if err != nil {
			said = apperr.As(err).Message
		}
		if done || nova.deleted != tc.calls || (tc.words == "") != (err == nil) || !strings.Contains(said, tc.words) {
			t.Errorf("%s: done is %t, %v; Nova was called %d times", name, done, err, nova.deleted)
		}
	}
}

// TestLongDeletionIsAbandoned: Nova accepts the call and sets the server to ERROR again, with a fault that is older
// than the action by Nova's clock. The action fails within minutes and a few calls, with Nova's message.
func TestLongDeletionIsAbandoned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	id := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id,
  delete_tries, delete_tried_at)
values ($1, $2, 0, 'x', 's', 'error', 'launched', $3, 6, now() - interval '1 h')`, w.ID, id, c.ID) // six of an action of before
	nova, s := w.withFailingNova(c)
	s.actions = postgres.Actions{DB: w.db}
	a := w.ask(t, c, id, domain.ActionRequest{Action: domain.Delete}, nil)
	nova.server = domain.Server{
		ID: "s", Name: "x", Status: "ERROR",
		Fault: &domain.Fault{Message: "out of volumes", Created: a.CreatedAt.Add(-time.Second)},
	}
	const step = 3 * time.Second
	var took time.Duration
	for ; a.Status == domain.ActionRunning && took < 10*time.Minute; took += step {
		claim, taken, err := s.actions.Claim(t.Context(), w.ID, c.ID, time.Second, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range taken {
			s.workOnAction(t.Context(), c, claim, one)
		}
		// Move everything back by one step, as if that time had passed.
		nova.server.Fault.Created = nova.server.Fault.Created.Add(-step)
		w.exec(t, `update actions set created_at = created_at - $2::interval,
  claimed_until = claimed_until - $2::interval where id = $1`, a.ID, step)
		w.exec(t, "update instances set delete_tried_at = delete_tried_at - $2::interval where id = $1", id, step)
		a = w.action(t, a)
	}
	if a.Status != domain.ActionFailed || took > 5*time.Minute || nova.deleted != 6 {
		t.Fatalf("after %s and %d calls the action is %s", took, nova.deleted, a.Status)
	}
	if want := "Nova was asked 6 times to delete the server s (x), which is still there, in the status ERROR: out " +
		"of volumes"; a.Problem.Detail != want {
		t.Errorf("it says %q", a.Problem.Detail)
	}
}

// TestConnectRejectsServerBeingDeleted: as without a connection, a server that is being deleted cannot be connected.
func TestConnectRejectsServerBeingDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	nova, s := w.withFailingNova(c)
	for status, task := range map[string]string{"ACTIVE": "deleting", "DELETED": "", "SOFT_DELETED": ""} {
		nova.server = domain.Server{ID: uuid.NewString(), Status: status, Task: task, ProjectID: w.ID}
		a := w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Connect},
			func(a *domain.DelegatedAction) { a.ServerID = nova.server.ID })
		if done, err := s.step(t.Context(), c, &a); done || apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("%s %s: done is %t, %v", status, task, done, err)
		}
	}
}
