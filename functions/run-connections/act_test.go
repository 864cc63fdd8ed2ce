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

// failing is a Nova that accepts to delete a server and cannot: what the sandbox's, whose hypervisor is a fake, never does.
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

// withFailingNova does actions of the connection with that Nova.
func (w *world) withFailingNova(c domain.Connection) (*failing, *service) {
	nova := &failing{}
	s := &service{
		clock: w.db, delegations: postgres.Delegations{DB: w.db}, instances: postgres.Instances{DB: w.db}, cloud: newSessions(nil),
	}
	e := s.cloud.entry(c.ID)
	e.see(c)
	e.session = nova
	return nova, s
}

// TestADeletionThatFails is told in Nova's words, and not asked for again and again: neither when Nova says why, nor when it does not.
// A fault from before is no reason not to try.
func TestADeletionThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	id := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id) values ($1, $2, 0, 'x', 's', 'active', 'launched', $3)`, w.ID, id, c.ID)
	nova, s := w.withFailingNova(c)
	for name, tc := range map[string]struct {
		fault, age time.Duration // since the action was asked for, and of the action
		words      string
		told       int
	}{
		"a fault of before": {-time.Minute, 0, "", 1},
		"a new fault":       {time.Minute, 0, "out of volumes", 0},
		"no end":            {-time.Minute, retryFor + time.Minute, "within 1h0m0s", 1},
	} {
		a := w.ask(t, c, id, domain.ActionRequest{Action: domain.Delete}, nil)
		a.CreatedAt = a.CreatedAt.Add(-tc.age)
		nova.deleted = 0
		w.exec(t, "update instances set delete_tries = 0, delete_tried_at = null where id = $1", id)
		nova.server = domain.Server{ID: "s", Status: "ERROR", Fault: &domain.Fault{Message: "out of volumes", Created: a.CreatedAt.Add(tc.fault)}}
		done, err := s.step(t.Context(), c, a)
		said := ""
		if err != nil {
			said = apperr.As(err).Message
		}
		if done || nova.deleted != tc.told || (tc.words == "") != (err == nil) || !strings.Contains(said, tc.words) {
			t.Errorf("%s: done is %t, %v; Nova was told %d times", name, done, err, nova.deleted)
		}
	}
}

// TestADeletionIsNotAskedForEver: Nova takes the call and has the server in ERROR again, with a fault that is older than the action by
// its own clock. The action ends within minutes, in Nova's words, after a few calls.
func TestADeletionIsNotAskedForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	id := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, origin, connection_id, delete_tries, delete_tried_at)
values ($1, $2, 0, 'x', 's', 'error', 'launched', $3, 6, now() - interval '1 h')`, w.ID, id, c.ID) // six of an action of before
	nova, s := w.withFailingNova(c)
	s.actions = postgres.Actions{DB: w.db}
	a := w.ask(t, c, id, domain.ActionRequest{Action: domain.Delete}, nil)
	nova.server = domain.Server{ID: "s", Name: "x", Status: "ERROR", Fault: &domain.Fault{Message: "out of volumes", Created: a.CreatedAt.Add(-time.Second)}}
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
		// Time goes by.
		nova.server.Fault.Created = nova.server.Fault.Created.Add(-step)
		w.exec(t, "update actions set created_at = created_at - $2::interval, claimed_until = claimed_until - $2::interval where id = $1", a.ID, step)
		w.exec(t, "update instances set delete_tried_at = delete_tried_at - $2::interval where id = $1", id, step)
		a = w.action(t, a)
	}
	if a.Status != domain.ActionFailed || took > 5*time.Minute || nova.deleted != 6 {
		t.Fatalf("after %s and %d calls the action is %s", took, nova.deleted, a.Status)
	}
	if want := "Nova was asked 6 times to delete the server s (x), which is still there, in the status ERROR: out of volumes"; a.Problem.Detail != want {
		t.Errorf("it says %q", a.Problem.Detail)
	}
}

// TestConnectWhatIsBeingDeleted is refused, as it is without a connection: what is deleted does not come back.
func TestConnectWhatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, "none" })
	nova, s := w.withFailingNova(c)
	for status, task := range map[string]string{"ACTIVE": "deleting", "DELETED": "", "SOFT_DELETED": ""} {
		nova.server = domain.Server{ID: uuid.NewString(), Status: status, Task: task, ProjectID: w.ID}
		a := w.ask(t, c, uuid.New(), domain.ActionRequest{Action: domain.Connect}, func(a *domain.DelegatedAction) { a.ServerID = nova.server.ID })
		if done, err := s.step(t.Context(), c, a); done || apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("%s %s: done is %t, %v", status, task, done, err)
		}
	}
}
