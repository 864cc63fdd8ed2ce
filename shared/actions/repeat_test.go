package actions

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func followed(request domain.ActionRequest, requested time.Time) Action {
	return Action{
		ActionRequest: request, ServerID: "s", Instance: domain.Instance{ID: uuid.New(), ServerID: "s"},
		Actor:  &domain.Actor{UserID: "u"},
		Follow: &Follow{RequestedAt: requested, Now: time.Now(), Waiting: time.Since(requested)},
	}
}

// TestDeleteAfterARebuildFailed calls Nova: a fault that is younger than the request, and older than any call of this
// deletion, is the answer to something else.
func TestDeleteAfterARebuildFailed(t *testing.T) {
	t.Parallel()
	requested := time.Now().Add(-time.Minute)
	nova := &fakeNova{server: server("ERROR", "")}
	nova.server.Fault = &domain.Fault{Message: "the rebuild failed", Created: requested.Add(30 * time.Second)}
	a := followed(domain.ActionRequest{Action: domain.Delete}, requested)
	if _, err := (Engine{&fakeInstances{}}).Step(t.Context(), nova, a); err != nil || len(nova.calls) != 1 {
		t.Errorf("called %v: %v", nova.calls, err)
	}
	nova.server.Task = ""
	a.Instance.DeleteTries, a.Instance.DeleteTriedAt = 1, requested.Add(10*time.Second)
	if _, err := (Engine{&fakeInstances{}}).Step(t.Context(), nova, a); apperr.CodeOf(err) != apperr.Conflict ||
		len(nova.calls) != 1 {
		t.Errorf("after a call of its own: called %v: %v", nova.calls, err)
	}
}

// lostAnswers is a Nova that reboots, behind a proxy that answers 504.
type lostAnswers struct{ *fakeNova }

func (l lostAnswers) RebootServer(ctx context.Context, id string, hard bool) error {
	_ = l.fakeNova.RebootServer(ctx, id, hard)
	l.server.Task = ""
	l.log = append(l.log, domain.LoggedAction{Name: "reboot", Start: time.Now()})
	return apperr.New(apperr.Timeout, "504")
}

// TestARebootIsNotRepeated although each answer to it is lost.
func TestARebootIsNotRepeated(t *testing.T) {
	t.Parallel()
	nova := lostAnswers{&fakeNova{server: server("ACTIVE", "")}}
	nova.log = []domain.LoggedAction{{Name: "reboot", Start: time.Now().Add(-time.Hour)}} // of before
	a, p := followed(domain.ActionRequest{Action: domain.Reboot}, time.Now()), Progress{}
	for n := range 3 {
		var err error
		if p, err = (Engine{&fakeInstances{}}).Step(t.Context(), nova, a); (err != nil) != (n == 0) {
			t.Fatalf("step %d: %v", n, err)
		}
	}
	if len(nova.calls) != 1 || !p.Done {
		t.Errorf("%d reboots, %+v", len(nova.calls), p)
	}
}

// TestHardRebootAfterASoftOne calls Nova: the soft one, which is in its log, hangs.
func TestHardRebootAfterASoftOne(t *testing.T) {
	t.Parallel()
	nova := &fakeNova{server: server("REBOOT", "reboot_started")}
	nova.log = []domain.LoggedAction{{Name: "reboot", Start: time.Now()}}
	a := followed(domain.ActionRequest{Action: domain.Reboot, Hard: true}, time.Now())
	p, err := Engine{&fakeInstances{}}.Step(t.Context(), nova, a)
	if err != nil || len(nova.calls) != 1 || !p.Accepted {
		t.Errorf("called %v, %+v: %v", nova.calls, p, err)
	}
}
