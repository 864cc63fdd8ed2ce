package managed

import (
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
	"github.com/cloudfn/cloudfn/shared/orders"
)

// creating is a driver whose creations end as a test says: made, or with these errors, the last one for good.
type creating struct {
	*service

	errs []error
	got  []Desired
}

func (d *creating) Create(ctx context.Context, s Session, in Desired) (string, error) {
	d.got = append(d.got, in)
	if len(d.errs) == 0 {
		return d.service.Create(ctx, s, in)
	}
	err := d.errs[0]
	if len(d.errs) > 1 {
		d.errs = d.errs[1:]
	}
	return "", err
}

func newCreating(errs ...error) (Engine, *memory, *creating) {
	d := &creating{service: newService(domain.KindVolume), errs: errs}
	e, s := newServed(d.service)
	e.Drivers[d.kind] = d
	e.Unseal = func(m domain.Managed) (domain.ManagedSecrets, error) {
		return domain.ManagedSecrets{Payload: string(m.Secrets)}, nil
	}
	return e, s, d
}

// declare makes another revision the current one, as the database does.
func (s *memory) declare(spec string) {
	m := &s.all[0]
	m.Made = map[int]domain.Revision{m.Revision: {Number: m.Revision, Spec: m.Spec, Secrets: m.Secrets}}
	m.Revision, m.Spec, m.Secrets, m.NextAt = m.Revision+1, []byte(spec), []byte(spec), time.Now()
	for id, member := range s.members {
		member.Attempts, member.RetryAt = 0, time.Time{}
		s.members[id] = member
	}
}

var (
	errNoAnswer = apperr.New(apperr.Timeout, "no answer")
	errWaiting  = Waits("VolumeInUse", "volume data is reserved")
)

// TestCreatedRevision: what was not requested is made as it is declared by the time it is requested, and is of that
// revision. What may have been requested stays what it was, with the secrets of its revision.
func TestCreatedRevision(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		first error
		want  int
	}{
		"waits": {errWaiting, 2}, "without an answer": {errNoAnswer, 1},
		"before the call": {unsent(apperr.New(apperr.Unavailable, "glance is unavailable")), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, s, d := newCreating(tc.first)
				s.all[0].Spec, s.all[0].Secrets = []byte(`{"n": 1}`), []byte(`{"n": 1}`)
				s.run(t, e)
				s.declare(`{"n": 2}`)
				d.errs = nil
				s.run(t, e)
				want := map[int]string{1: `{"n": 1}`, 2: `{"n": 2}`}[tc.want]
				got, member := d.got[len(d.got)-1], s.only(t)
				if string(got.Spec) != want || got.Secrets.Payload != want || member.Revision != tc.want ||
					len(d.got) != 2 {
					t.Errorf("it requests %s with the secret %q, as revision %d", got.Spec, got.Secrets.Payload,
						member.Revision)
				}
			})
		})
	}
}

// TestNothingIsRequested: a creation that fails before its call, or whose call reaches no service, has requested
// nothing, with each driver. A server's order is made later even if its call was not sent: it counts as requested.
func TestNothingIsRequested(t *testing.T) {
	t.Parallel()
	for kind, tc := range map[domain.Kind]struct {
		driver Driver
		spec   string
		reads  int // before the call
	}{
		domain.KindMachine: {
			&MachineDriver{Orders: orders.Engine{Orders: placed{}}},
			`{"flavor": "tiny", "image": "cirros", "networks": ["private"]}`, 3,
		},
		domain.KindVolume:   {VolumeDriver{}, `{"size_gb": 1, "image": "cirros"}`, 2},
		domain.KindImage:    {ImageDriver{}, `{"disk_format": "raw", "content": "YQ=="}`, 1},
		domain.KindSecret:   {SecretDriver{}, `{}`, 1},
		domain.KindBalancer: {NewBalancerDriver(), `{"network": "private"}`, 2},
	} {
		for reads := range tc.reads + 1 {
			isCall := reads == tc.reads
			if isCall && kind == domain.KindMachine {
				continue
			}
			w, left, isSent := newModelWorld(), reads, false
			run, ctx := w.newRun(0, 0)
			run.forced = func(call string) string { // so many reads are answered
				isSent = strings.HasPrefix(call, "Create") || strings.HasPrefix(call, "Store")
				switch left--; {
				case isSent:
					return "unsent"
				case left < 0:
					return "503"
				}
				return ""
			}
			in := Desired{
				Resource: domain.Managed{Kind: kind}, Spec: []byte(tc.spec), Inventory: NewInventory(nil, nil),
			}
			_, err := tc.driver.Create(ctx, Session{Cloud: modelView{c: w.cloud, run: run}}, in)
			run.cancel()
			if !errors.Is(err, errUnsent) || apperr.CodeOf(err) != apperr.Unavailable || isSent != isCall {
				t.Errorf("%s: after %d reads, sent %t, it fails with %v", kind, reads, isSent, err)
			}
		}
	}
}

// TestOpenCreationIsAwaited: an object that a call without an answer may have made is not forgotten, whatever has kept
// the calls after it: it is deleted with its resource, however late it appears.
func TestOpenCreationIsAwaited(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]error{
		"a wait": errWaiting, "a final error": apperr.New(apperr.Invalid, "there is no flavor a"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, s, d := newCreating(errNoAnswer, then)
				s.run(t, e)
				id := s.only(t).ID
				time.Sleep(shortestPause)
				s.run(t, e)
				s.all[0].Request, s.all[0].NextAt = domain.ManagedDelete, time.Now()
				s.run(t, e)
				time.Sleep(openCall / 2)
				d.found[id] = Object{ID: "late", State: ObjectReady, Raw: "it"}
				for range 20 {
					s.run(t, e)
					time.Sleep(shortestPause)
				}
				if len(d.found) > 0 || d.deletes != 1 || len(s.all)+len(s.members) > 0 {
					t.Errorf("left are %v, with %+v and %+v", d.found, s.all, s.members)
				}
			})
		})
	}
}

// TestOpenCallOutlivesItsObject: a member is kept for as long as a create call without an answer may make an object,
// although another call has made one that is deleted by then. Without such a call it is forgotten with its object.
func TestOpenCallOutlivesItsObject(t *testing.T) {
	t.Parallel()
	for _, isOpen := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e, s, d := newCreating(errNoAnswer)
			if !isOpen {
				d.errs = nil
			}
			s.run(t, e)
			time.Sleep(shortestPause)
			d.errs = nil
			s.run(t, e)
			s.run(t, e)
			member := s.only(t)
			member.CreatedAt = time.Now()
			s.members[member.ID] = member
			s.all[0].Request, s.all[0].NextAt = domain.ManagedDelete, time.Now()
			s.run(t, e)
			s.run(t, e)
			if (len(s.all) == 0) == isOpen {
				t.Errorf("open %t: left are %+v with %+v", isOpen, s.all, s.members)
			}
			time.Sleep(openCall / 2)
			if isOpen {
				d.found[member.ID] = Object{ID: "late", State: ObjectReady, Raw: "it", CreatedAt: time.Now()}
			}
			for range 20 {
				s.run(t, e)
				time.Sleep(shortestPause)
			}
			if len(d.found) > 0 || len(s.all)+len(s.members) > 0 {
				t.Errorf("open %t: left are %v, with %+v and %+v", isOpen, d.found, s.all, s.members)
			}
		})
	}
}

// TestWaitAfterFailure: what waits after an earlier failure has one status, in the steps and in the pauses between.
func TestWaitAfterFailure(t *testing.T) {
	t.Parallel()
	for _, isChange := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e, s, _ := newCreating(errNoAnswer, errWaiting)
			want := domain.ManagedPending
			if isChange {
				var d *changingDriver
				tag := Difference{Field: "tags.a", Way: InPlace}
				e, s, d = newChange(tag, func(m *domain.Member) { m.Attempts = 1 })
				d.errs, want = slices.Repeat([]error{errWaiting}, 100), domain.ManagedUpdating
			} else {
				s.run(t, e)
				time.Sleep(shortestPause)
			}
			for range 30 {
				s.run(t, e)
				if m := s.all[0]; m.Status != want || m.Reason != "volume data is reserved" {
					t.Fatalf("it is %s, %s", m.Status, m.Reason)
				}
				time.Sleep(2 * time.Second)
			}
			if m := s.only(t); m.Attempts != 1 {
				t.Errorf("it has %d attempts", m.Attempts)
			}
		})
	}
}

// TestUnknownObject: an object that is known only by its id is listed less and less often, and the resource says since
// when. It is as before when it is shown again.
func TestUnknownObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s, d, p := newFleet(1)
		time.Sleep(24 * time.Hour)
		var id uuid.UUID
		for id = range s.members {
		}
		shown := d.found[id]
		d.found[id] = Object{ID: shown.ID, State: ObjectWorking, Reason: "no list shows it"}
		s.all[0].NextAt = time.Now()
		since, passes := time.Now(), 0
		for ; time.Since(since) < 10*time.Minute; time.Sleep(s.dueIn) {
			s.runProject(t, e, p)
			passes++
		}
		text := "no list shows it since " + since.UTC().Format(time.RFC3339)
		if c := conditionOf(s.all[0], domain.ConditionReady); passes > 60 || c.Message == "" ||
			!slices.Contains([]string{text, "0 of 1 have revision 1; " + text}, c.Message) {
			t.Errorf("after %d passes it is %+v, want %q", passes, c, text)
		}
		d.found[id] = shown
		for range 3 {
			s.all[0].NextAt = time.Now()
			s.runProject(t, e, p)
		}
		if m := s.all[0]; m.Status != domain.ManagedReady || s.only(t).Reason != "" {
			t.Errorf("then it is %s, %q: %+v", m.Status, m.Reason, s.members)
		}
	})
}

// shelf is a project's volumes. Its nth creation ends as calls say, or with an answer.
type shelf struct {
	Cloud

	calls []string
	mu    sync.Mutex // guards all
	all   []domain.Volume
}

func (c *shelf) Volumes(context.Context, string, string) ([]domain.Volume, error) {
	return c.list(), nil
}

func (c *shelf) list() []domain.Volume {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

func (c *shelf) Volume(_ context.Context, id string) (domain.Volume, error) {
	for _, v := range c.list() {
		if v.ID == id {
			return v, nil
		}
	}
	return domain.Volume{}, apperr.New(apperr.NotFound, "there is no volume %s", id)
}

func (c *shelf) add(metadata map[string]string) string {
	v := domain.Volume{
		ID: uuid.NewString(), Name: "thing", Status: "available", SizeGB: 1, CreatedAt: time.Now(), Metadata: metadata,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, v)
	return v.ID
}

func (c *shelf) CreateVolume(_ context.Context, r domain.VolumeRequest) (string, error) {
	how := "answered"
	if len(c.calls) > 0 {
		how, c.calls = c.calls[0], c.calls[1:]
	}
	switch how {
	case "late":
		time.AfterFunc(shortestPause+time.Second, func() { c.add(r.Metadata) })
		return "", errNoAnswer
	case "lost":
		c.add(r.Metadata)
		return "", errNoAnswer
	case "rejected":
		return "", apperr.New(apperr.Invalid, "there is no such type")
	}
	return c.add(r.Metadata), nil
}

func (c *shelf) DeleteVolume(_ context.Context, id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(v domain.Volume) bool { return v.ID == id })
	return nil
}

// TestMadeTwice: an object is deleted as one that was made twice only when two create calls may have made objects.
// What an owner copies with its mark, however soon, is the owner's.
func TestMadeTwice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		calls  []string
		copies int
		want   int // volumes that stay
	}{
		"copied":                            {nil, 1, 2},
		"copied after a lost answer":        {[]string{"lost"}, 1, 2},
		"copied after a rejection":          {[]string{"rejected"}, 1, 2},
		"made by a late call":               {[]string{"late"}, 0, 1},
		"made by a late call, copied twice": {[]string{"late"}, 2, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := &shelf{calls: tc.calls}
				e, s := newServed(newService(domain.KindVolume))
				e.Drivers[domain.KindVolume], e.Sessions = VolumeDriver{}, in{session: Session{Cloud: c}}
				s.all[0].Spec = []byte(`{"size_gb": 1}`)
				passes := func(count int) {
					for range count {
						s.run(t, e)
						time.Sleep(shortestPause)
					}
				}
				for len(c.list()) == 0 || s.only(t).ObjectID == "" {
					passes(1)
				}
				first := c.list()[0]
				for range tc.copies {
					c.add(first.Metadata)
				}
				passes(8)
				if all := c.list(); len(all) != tc.want || s.only(t).ObjectID == "" ||
					s.all[0].Status != domain.ManagedReady {
					t.Errorf("there are %+v of %+v, %+v", all, s.all, s.only(t))
				}
			})
		})
	}
}
