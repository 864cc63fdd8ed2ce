package orders

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeBackend is a Nova and a database in memory: for rejections that the sandbox cannot be made to show. What they do
// together for real is tested with the functions launch and run-connections.
type fakeBackend struct {
	Store // what is not used

	mu       sync.Mutex
	order    domain.Order
	servers  []domain.Server
	rejects  map[string]error // by call
	once     map[string]error // by call, the first only
	volumes  []domain.ServerVolume
	attached []domain.Attachment
	// isDetached: someone has taken a port from each server.
	isDetached bool
	created    string // the first status of servers; "" = ACTIVE
	floating   *domain.ServerFloatingIP
	marks      map[string]string                // servers by the marks of their floating IPs
	set        map[string][]domain.ServerVolume // of a server, by the last call
	onRecord   func()
	calls      []string
	released   int

	unexpected []string // servers that an event was published about
}

func (d *fakeBackend) call(name string) error {
	d.calls = append(d.calls, name)
	if err := d.once[name]; err != nil {
		d.once = nil
		return err
	}
	return d.rejects[name]
}

func (d *fakeBackend) Quota(context.Context) (domain.Quota, error) {
	return domain.Quota{}, errors.New("quota unavailable")
}

func (d *fakeBackend) CreateServer(
	_ context.Context, _ domain.LaunchSpec, name string, _ domain.Secret, tags []string,
) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("create"); err != nil {
		return "", err
	}
	d.servers = append(d.servers, domain.Server{
		ID: "server of " + name, Name: name, Status: cmp.Or(d.created, "ACTIVE"), Tags: tags,
	})
	return "server of " + name, nil
}

func (d *fakeBackend) act(name, id, status string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call(name); err != nil {
		return err
	}
	for n := range d.servers {
		if d.servers[n].ID == id {
			d.servers[n].Status = status
		}
	}
	return nil
}

func (d *fakeBackend) StartServer(_ context.Context, id string) error {
	return d.act("start", id, "ACTIVE")
}

func (d *fakeBackend) StopServer(_ context.Context, id string) error {
	return d.act("stop", id, "SHUTOFF")
}

func (d *fakeBackend) DeleteServer(_ context.Context, id string) error {
	return d.act("delete", id, "DELETED")
}

func (d *fakeBackend) SetVolumes(_ context.Context, id string, volumes []domain.ServerVolume) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("volumes"); err != nil {
		return err
	}
	if d.set == nil {
		d.set = map[string][]domain.ServerVolume{}
	}
	d.set[id] = volumes
	return nil
}

func (d *fakeBackend) RecordVolumes(_ context.Context, _ domain.Order, _ domain.Claim, instance uuid.UUID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.onRecord != nil {
		d.onRecord()
	}
	if err := d.call("record"); err != nil {
		return err
	}
	for n := range d.order.Instances {
		if d.order.Instances[n].ID == instance {
			d.order.Instances[n].VolumesSetAt = time.Now()
		}
	}
	return nil
}

func (d *fakeBackend) Server(_ context.Context, id string) (domain.Server, error) {
	return domain.Server{ID: id, Status: "DELETED", Partial: true}, nil
}

func (d *fakeBackend) Servers(context.Context, domain.ServerQuery) ([]domain.Server, bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.servers), false, d.rejects["list"]
}

func (d *fakeBackend) Renew(context.Context, domain.Order, domain.Claim, time.Duration) error {
	return nil
}

func (d *fakeBackend) BeginCall(
	_ context.Context, _ domain.Order, _ domain.Claim, call domain.CreateCall, _, fence time.Duration,
) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	call.BeganAt, call.Until = time.Now(), time.Now().Add(fence)
	d.order.Calls = append(d.order.Calls, call)
	return nil
}

func (d *fakeBackend) EndCall(_ context.Context, _ domain.Order, call domain.CreateCall) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := range d.order.Calls {
		if d.order.Calls[n].ID == call.ID {
			d.order.Calls[n].EndedAt = time.Now()
		}
	}
	return nil
}

func (d *fakeBackend) MarkDuplicate(
	_ context.Context, _ domain.Order, call domain.CreateCall, serverID string,
) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := slices.IndexFunc(d.order.Calls, func(c domain.CreateCall) bool { return c.ID == call.ID })
	d.order.Calls[n].ServerID = serverID
	return true, nil
}

func (d *fakeBackend) PublishUnexpected(_ context.Context, _ domain.Instance, s domain.Server) (bool, error) {
	d.unexpected = append(d.unexpected, s.ID)
	return true, nil
}

func (d *fakeBackend) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func (d *fakeBackend) Release(context.Context, domain.Order, domain.Claim) error {
	d.released++
	return nil
}

func (d *fakeBackend) Decide(ctx context.Context, _ domain.Claim, i domain.Instance) error {
	_, err := d.Change(ctx, []domain.Instance{i})
	return err
}

func (d *fakeBackend) Change(_ context.Context, known []domain.Instance) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range known {
		for n := range d.order.Instances {
			if stored := &d.order.Instances[n]; stored.ID == k.ID {
				k.DeleteTries, k.DeleteTriedAt = stored.DeleteTries, stored.DeleteTriedAt
				*stored = k
			}
		}
	}
	return len(known), nil
}

func (d *fakeBackend) RecordDeleteAttempt(_ context.Context, i domain.Instance, _ time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n := range d.order.Instances {
		if tried := &d.order.Instances[n]; tried.ID == i.ID {
			tried.DeleteTries, tried.DeleteTriedAt = tried.DeleteTries+1, time.Now()
		}
	}
	return nil
}

func (d *fakeBackend) Get(context.Context, string, uuid.UUID) (domain.Order, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	order := d.order
	order.ReadAt, order.Calls = time.Now(), slices.Clone(order.Calls)
	order.Instances = slices.Clone(order.Instances)
	return order, nil
}

type prepareFunc func(context.Context, domain.Order, domain.Claim) (domain.Order, error)

// work works on an order of two instances.
func (d *fakeBackend) work(t *testing.T, spec domain.OrderSpec, prepare prepareFunc) (domain.OrderStatus, error) {
	t.Helper()
	ordered := domain.LaunchSpec{Volumes: d.volumes, FloatingIP: d.floating, Attachments: d.attached}
	d.order = domain.Order{
		ID: uuid.New(), Status: domain.OrderRunning, Spec: spec, ConnectionID: uuid.New(),
		Instances: []domain.Instance{
			{ID: uuid.New(), Name: "a", State: domain.InstanceRequested, Spec: ordered},
			{ID: uuid.New(), Name: "b", State: domain.InstanceRequested, Spec: ordered},
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w := Engine{Orders: d, Instances: d, Wake: func() {}, Fence: time.Minute}
	order, _ := d.Get(ctx, "", d.order.ID)
	session := Session{Cloud: d, UserData: make([]domain.Secret, 2), Prepare: prepare, Follows: true}
	err := w.work(ctx, session, order, domain.Claim{})
	order, _ = d.Get(ctx, "", d.order.ID)
	return order.Evaluate(), err
}

// TestWork continues an order through a connection until it is settled, and reports what the session may not
// do.
func TestWork(t *testing.T) {
	t.Parallel()
	forbidden, stale := apperr.New(apperr.Forbidden, "no"), apperr.New(apperr.Unauthenticated, "no")
	stopped := domain.OrderSpec{Stopped: true}
	for name, tc := range map[string]struct {
		spec     domain.OrderSpec
		rejects  map[string]error
		status   domain.OrderStatus
		code     apperr.Code
		stops    int
		released int
	}{
		"all is well": {domain.OrderSpec{}, nil, domain.OrderDone, "", 0, 1},
		"stopped":     {stopped, nil, domain.OrderDone, "", 2, 1},
		"create is rejected": {
			domain.OrderSpec{}, map[string]error{"create": forbidden}, domain.OrderFailed, "", 0, 1,
		},
		"the token has expired": {
			domain.OrderSpec{}, map[string]error{"create": stale}, domain.OrderRunning, apperr.Unauthenticated, 0, 1,
		},
		"the token expires before stop": {
			stopped, map[string]error{"stop": stale}, domain.OrderRunning, apperr.Unauthenticated, 2, 1,
		},
		"stop is forbidden": {
			stopped, map[string]error{"stop": forbidden}, domain.OrderRunning, apperr.Forbidden, 2, 1,
		},
		"list is rejected": {
			domain.OrderSpec{}, map[string]error{"list": stale}, domain.OrderRunning, apperr.Unauthenticated, 0, 1,
		},
		"create times out": {
			domain.OrderSpec{},
			map[string]error{"create": apperr.New(apperr.Timeout, "slow")},
			domain.OrderRunning, apperr.Timeout, 0, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &fakeBackend{rejects: tc.rejects}
			status, err := d.work(t, tc.spec, nil)
			stops := len(slices.DeleteFunc(slices.Clone(d.calls), func(c string) bool { return c != "stop" }))
			if status != tc.status || apperr.CodeOf(err) != tc.code || stops != tc.stops || d.released != tc.released {
				t.Errorf("the order is %s, got %v, after %v; released %d times", status, err, d.calls, d.released)
			}
		})
	}
}

// TestPrepare fails instances, or returns an error that is left to the next run.
func TestPrepare(t *testing.T) {
	t.Parallel()
	d := &fakeBackend{}
	fail := func(ctx context.Context, o domain.Order, _ domain.Claim) (domain.Order, error) {
		for _, i := range o.Instances {
			i.State, i.Problem = domain.InstanceError, &domain.Problem{Code: "invalid"}
			_ = d.Decide(ctx, domain.Claim{}, i)
		}
		return d.Get(ctx, "", o.ID)
	}
	status, err := d.work(t, domain.OrderSpec{}, fail)
	if status != domain.OrderFailed || err != nil || len(d.calls) != 0 {
		t.Errorf("the order is %s, got %v, after %v", status, err, d.calls)
	}
	d = &fakeBackend{}
	outage := apperr.New(apperr.Unavailable, "unavailable")
	unavailable := func(_ context.Context, o domain.Order, _ domain.Claim) (domain.Order, error) { return o, outage }
	status, err = d.work(t, domain.OrderSpec{}, unavailable)
	if status != domain.OrderRunning || !errors.Is(err, outage) || len(d.calls) != 0 || d.released != 1 {
		t.Errorf("the order is %s, got %v, after %v", status, err, d.calls)
	}
}

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
		"it goes to ERROR":    {nil, "a s1 (out of volumes)", true},
		"it is locked":        {apperr.New(apperr.Conflict, "locked"), "a s1 (Nova does not say why)", true},
		"nova is unavailable": {apperr.New(apperr.Unavailable, "unavailable"), "", false},
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
