package orders

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// undeletable is a Nova that takes the call to delete a server, and has it in ERROR afterwards: the sandbox's cannot be
// made to.
type undeletable struct {
	*fakeBackend
	rejection error // the answer to deletions
	at        []time.Time
}

func (u *undeletable) DeleteServer(_ context.Context, id string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.at = append(u.at, time.Now())
	if u.rejection == nil {
		n := slices.IndexFunc(u.servers, func(s domain.Server) bool { return s.ID == id })
		u.servers[n].Status, u.servers[n].Fault = "ERROR", &domain.Fault{Message: "out of volumes", Created: time.Now()}
	}
	return u.rejection
}

// TestRollbackFails ends within minutes, after a few calls with growing pauses, and names the remaining servers with
// the reason.
func TestRollbackFails(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rejection error
		says      string
		ends      bool
	}{
		"it goes to ERROR": {nil, "a s1 (out of volumes)", true},
		"it is locked":     {apperr.New(apperr.Conflict, "locked"), "a s1 (Nova does not say why)", true},
		"nova is away":     {apperr.New(apperr.Unavailable, "away"), "", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeBackend{servers: []domain.Server{{ID: "s1", Name: "a", Status: "ACTIVE"}}}
			d.order = domain.Order{
				ID: uuid.New(), Status: domain.OrderRunning,
				Spec: domain.OrderSpec{OnFailure: domain.Rollback}, Instances: []domain.Instance{
					{ID: uuid.New(), Name: "a", ServerID: "s1", State: domain.InstanceActive},
					{
						ID: uuid.New(), Name: "b", State: domain.InstanceError,
						Problem: &domain.Problem{Code: "quota_exceeded"},
					},
				},
			}
			d.servers[0].Tags = []string{d.order.Instances[0].ID.String()}
			nova := &undeletable{fakeBackend: d, rejection: tc.rejection}
			began, order := time.Now(), d.order
			for order.Evaluate() == domain.OrderRunning && time.Since(began) < 10*time.Minute {
				ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
				_ = Engine{Orders: d, Instances: d, Wake: func() {}, Fence: time.Minute}.work(ctx, Session{Cloud: nova},
					order, domain.Claim{})
				cancel()
				time.Sleep(time.Second)
				order, _ = d.Get(t.Context(), "", order.ID)
			}
			if !tc.ends {
				if order.Evaluate() != domain.OrderRunning || len(nova.at) < 100 {
					t.Errorf("%s: the order is %s after %d calls", name, order.Evaluate(), len(nova.at))
				}
				return
			}
			left := order.LeftProblem()
			if took := time.Since(began); order.Evaluate() != domain.OrderFailed || took > 5*time.Minute ||
				len(nova.at) != 6 {
				t.Errorf("%s: after %s and %d calls the order is %s", name, took, len(nova.at), order.Evaluate())
			}
			if left == nil || !strings.Contains(left.Detail, tc.says) || strings.Contains(left.Detail, " b ") {
				t.Errorf("%s: left is %+v, want %s", name, left, tc.says)
			}
			for n := range nova.at[1:] {
				if pause := nova.at[n+1].Sub(nova.at[n]); pause < 3*time.Second<<n {
					t.Errorf("%s: call %d came %s after the last", name, n+2, pause)
				}
			}
		})
	}
}

// locked is a Nova that does not delete one server.
type locked struct {
	*fakeBackend
	code apperr.Code
}

func (l locked) DeleteServer(ctx context.Context, id string) error {
	err := l.fakeBackend.DeleteServer(ctx, id)
	if id == "locked" {
		return apperr.New(l.code, "no")
	}
	return err
}

// TestStepsContinue takes the other servers' steps when one is locked, and reports a session that may not delete
// servers.
func TestStepsContinue(t *testing.T) {
	t.Parallel()
	for code, want := range map[apperr.Code]apperr.Code{apperr.Conflict: "", apperr.Forbidden: apperr.Forbidden} {
		d := &fakeBackend{}
		d.order = domain.Order{
			ID: uuid.New(), Status: domain.OrderRunning,
			Spec: domain.OrderSpec{OnFailure: domain.Rollback},
		}
		for _, id := range []string{"locked", "other"} {
			d.order.Instances = append(d.order.Instances,
				domain.Instance{ID: uuid.New(), ServerID: id, State: domain.InstanceError})
		}
		e := Engine{Orders: d, Instances: d, Wake: func() {}, Fence: time.Minute}
		_, errs := e.step(t.Context(), Session{Cloud: locked{d, code}}, d.order, domain.Claim{})
		err := denied(errs)
		if len(d.calls) != 2 || apperr.CodeOf(err) != want {
			t.Errorf("%s: %d calls, got %v", code, len(d.calls), err)
		}
	}
}
