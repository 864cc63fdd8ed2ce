package managed

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// sandbox is a project of the sandbox, and a resource in it that a test declares.
type sandbox struct {
	project *testkit.Project
	driver  Driver
	Session

	in Desired
}

// newSandbox makes a project for a test of a driver. All objects with marks are deleted at its end.
func newSandbox(t *testing.T, driver Driver, spec any) *sandbox {
	t.Helper()
	project := testkit.NewProject(t)
	s := &sandbox{
		project: project,
		driver:  driver,
		Session: Session{Cloud: project.Session(t), ProjectID: project.ID, UserID: project.UserID},
		in: Desired{
			Resource: domain.Managed{ID: uuid.New(), Kind: driver.Kinds()[0], Name: "thing", Revision: 1},
			Member:   domain.Member{ID: uuid.New(), Revision: 1}, Name: "thing", Inventory: NewInventory(nil, nil),
		},
	}
	s.in.Spec = asJSON(t, spec)
	s.in.Made = domain.Revision{Number: 1, Spec: s.in.Spec}
	t.Cleanup(func() { s.empty(t) })
	return s
}

func asJSON(t *testing.T, spec any) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// declare changes the spec. The object still has the old one.
func (s *sandbox) declare(t *testing.T, spec any) {
	t.Helper()
	s.in.Spec = asJSON(t, spec)
	s.in.Resource.Revision++
}

// revision is the current one.
func (s *sandbox) revision() domain.Revision {
	return domain.Revision{Number: s.in.Resource.Revision, Spec: s.in.Spec, Digest: s.in.Resource.Digest}
}

// list returns the member's object.
func (s *sandbox) list(t *testing.T) (Object, bool) {
	t.Helper()
	found, err := s.driver.List(context.WithoutCancel(t.Context()), s.Session, []domain.Member{s.in.Member})
	if err != nil {
		t.Fatal(err)
	}
	o, ok := found[s.in.Member.ID]
	return o, ok
}

const (
	settleFor  = 90 * time.Second // without any progress
	maxUpdates = 50
	stepPause  = 200 * time.Millisecond
)

// settle takes steps as the engine does, until the object is as declared, and returns it with the number of updates.
// It ends the test when nothing has changed for a while: how long a step takes is the machine's.
func (s *sandbox) settle(t *testing.T) (o Object, updates int) {
	t.Helper()
	var before Object
	var end time.Time
	for ; ; time.Sleep(stepPause) {
		found, ok := s.list(t)
		if end.IsZero() || !reflect.DeepEqual(found, before) {
			before, end = found, time.Now().Add(settleFor)
		}
		isSettled, isUpdate := s.step(t, found, ok, end)
		if isSettled {
			s.in.Made = s.revision()
			return found, updates
		}
		if isUpdate {
			updates++
		}
		if time.Now().After(end) || updates > maxUpdates {
			t.Fatalf("after %d updates it does not become as declared: %+v, %+v", updates, found,
				s.driver.Differences(s.in, found))
		}
	}
}

// step makes the object or updates it, unless it is as declared, or has to be waited for.
func (s *sandbox) step(t *testing.T, found Object, ok bool, end time.Time) (isSettled, isUpdate bool) {
	t.Helper()
	ctx, cancel := context.WithDeadline(t.Context(), end)
	defer cancel()
	var err error
	switch {
	case !ok, found.State == ObjectIncomplete:
		desired := s.in
		desired.Member.ObjectID = found.ID
		_, err = s.driver.Create(ctx, s.Session, desired)
	case found.State == ObjectReady:
		left := s.driver.Differences(s.in, found)
		if len(left) == 0 {
			return true, false
		}
		for _, d := range left {
			if d.Way != InPlace {
				t.Fatalf("it needs %+v", d)
			}
		}
		isUpdate = true
		err = s.driver.Update(ctx, s.Session, s.in, found, left)
	case found.State == ObjectError:
		t.Fatalf("it is in error: %s", found.Reason)
	}
	if _, isWait := errors.AsType[WaitError](err); err != nil && !isWait {
		t.Fatal(err)
	}
	return false, isUpdate
}

// settleNew is settle of an object that is made again.
func (s *sandbox) settleNew(t *testing.T) (o Object, updates int) {
	t.Helper()
	s.in.Member.ID = uuid.New()
	s.in.Made = s.revision()
	return s.settle(t)
}

// remove deletes the object, and waits until it is not listed.
func (s *sandbox) remove(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(settleFor); ; time.Sleep(stepPause) {
		o, ok := s.list(t)
		if !ok {
			return
		}
		err := s.driver.Delete(context.WithoutCancel(t.Context()), s.Session, o)
		if _, isWait := errors.AsType[WaitError](err); err != nil && !isWait {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("it is not deleted: %+v %v", o, err)
		}
	}
}

// empty deletes all objects with marks.
func (s *sandbox) empty(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for end := time.Now().Add(settleFor); time.Now().Before(end); time.Sleep(stepPause) {
		found, err := s.driver.List(ctx, s.Session, nil)
		if err == nil && len(found) == 0 {
			return
		}
		for _, o := range found {
			for _, one := range append(o.Extra, o) {
				_ = s.driver.Delete(ctx, s.Session, one) // again until nothing is listed
			}
		}
	}
	t.Error("objects are left")
}

// differ checks the fields that differ and the way of each, in the form "field way".
func (s *sandbox) differ(t *testing.T, o Object, want ...string) {
	t.Helper()
	var got []string
	for _, d := range s.driver.Differences(s.in, o) {
		got = append(got, d.Field+" "+string(d.Way))
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("the differences are %q, want %q", got, want)
	}
}

// deaf is a cloud that takes calls which create objects, and whose answers are lost: a fault that the real one cannot
// be made to show.
type deaf struct{ Cloud }

var errLost = apperr.New(apperr.Timeout, "the answer was lost")

func (d deaf) CreateVolume(ctx context.Context, r domain.VolumeRequest) (string, error) {
	_, err := d.Cloud.CreateVolume(ctx, r)
	return "", errors.Join(errLost, err)
}

func (d deaf) CreateImage(ctx context.Context, r domain.ImageRequest) (string, error) {
	_, err := d.Cloud.CreateImage(ctx, r)
	return "", errors.Join(errLost, err)
}

func (d deaf) CreateLoadBalancer(ctx context.Context, r domain.LoadBalancerRequest) (string, error) {
	_, err := d.Cloud.CreateLoadBalancer(ctx, r)
	return "", errors.Join(errLost, err)
}

func (d deaf) StoreSecret(ctx context.Context, name, contentType string, payload domain.Secret) (string, error) {
	_, err := d.Cloud.StoreSecret(ctx, name, contentType, payload)
	return "", errors.Join(errLost, err)
}

// blind is a cloud that finds no object by its mark, as for a replica whose call is still on its way.
type blind struct{ Cloud }

func (blind) Volumes(context.Context, string, string) ([]domain.Volume, error) { return nil, nil }
func (blind) TaggedImages(context.Context, string, string) ([]domain.ImageDetail, error) {
	return nil, nil
}

func (blind) LoadBalancers(context.Context, string, string) ([]domain.LoadBalancer, error) {
	return nil, nil
}
func (blind) Secrets(context.Context, string) ([]domain.StoredSecret, error) { return nil, nil }

// lost creates the object with a lost answer, again, and once more by a replica that does not see it. It returns the
// object, which is found by its mark, and checks that the other one is its Extra.
func (s *sandbox) lost(t *testing.T) Object {
	t.Helper()
	ctx := t.Context()
	faulty := s.Session
	faulty.Cloud = deaf{s.Cloud}
	if _, err := s.driver.Create(ctx, faulty, s.in); !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	first, ok := s.list(t)
	if !ok {
		t.Fatal("it is not found by its mark")
	}
	id, err := s.driver.Create(ctx, s.Session, s.in)
	if _, isWait := errors.AsType[WaitError](err); err != nil && !isWait || id != "" && id != first.ID {
		t.Errorf("it is made again: %s and %s, %v", first.ID, id, err)
	}
	if again, _ := s.list(t); again.ID != first.ID || len(again.Extra) > 0 {
		t.Errorf("it is there twice: %+v", again)
	}
	time.Sleep(time.Until(first.CreatedAt.Add(1100 * time.Millisecond))) // services write whole seconds
	faulty.Cloud = blind{s.Cloud}
	second, err := s.driver.Create(ctx, faulty, s.in)
	if err != nil || second == first.ID {
		t.Fatalf("a blind replica made %s: %v", second, err)
	}
	s.in.Member.CreateCalls = 2
	both, _ := s.list(t)
	if both.ID != first.ID || len(both.Extra) != 1 || both.Extra[0].ID != second {
		t.Errorf("of two objects with one mark: %+v", both)
	}
	for _, extra := range both.Extra {
		s.delete(t, extra)
	}
	return first
}

// delete deletes one object that the driver may have to wait for.
func (s *sandbox) delete(t *testing.T, o Object) {
	t.Helper()
	for end := time.Now().Add(settleFor); ; time.Sleep(stepPause) {
		both, _ := s.list(t)
		left := append(both.Extra, both)
		isThere := false
		for _, one := range left {
			if one.ID == o.ID {
				isThere = true
				err := s.driver.Delete(t.Context(), s.Session, one)
				if _, isWait := errors.AsType[WaitError](err); err != nil && !isWait {
					t.Fatal(err)
				}
			}
		}
		if !isThere {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s stays", o.ID)
		}
	}
}

// unmarked has others remove the mark of the object: it is found by its id, and gets the mark back.
func (s *sandbox) unmarked(t *testing.T, o Object, unmark func() error) {
	t.Helper()
	if err := unmark(); err != nil {
		t.Fatal(err)
	}
	isReady := func(found Object, err error) bool { return err == nil && found.State == ObjectReady }
	testkit.Eventually(t, settleFor, "it can be changed", func() bool {
		return isReady(s.driver.Find(t.Context(), s.Session, o.ID))
	})
	if listed, isListed := s.list(t); isListed {
		t.Errorf("without its mark it is listed: %+v", listed)
	}
	found, err := s.driver.Find(t.Context(), s.Session, o.ID)
	left := s.driver.Differences(s.in, found)
	if err != nil || len(left) == 0 || slices.ContainsFunc(left, func(d Difference) bool { return !d.IsMark }) {
		t.Errorf("without its mark it differs by %+v: %v", left, err)
	}
	if err := s.driver.Update(t.Context(), s.Session, s.in, found, left); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, settleFor, "it has its mark", func() bool {
		listed, _ := s.list(t)
		return listed.ID == o.ID && isReady(listed, nil)
	})
}

// TestKinds makes an object of each kind, whose creation loses its answer, has others remove its mark, changes it in
// place and deletes it, in its own service.
func TestKinds(t *testing.T) {
	t.Parallel()
	here := testkit.Sandbox(t)
	content := base64.StdEncoding.EncodeToString([]byte("canary"))
	for kind, tc := range map[domain.Kind]struct {
		driver        Driver
		spec, changed any // nil = it cannot be changed
		updates       int // that the change takes; 0 = any
		unmark        func(s *sandbox, id string) error
	}{
		domain.KindVolume: {
			VolumeDriver{}, domain.VolumeSpec{
				SizeGB: 1, Type: "standard", Description: "one", Metadata: map[string]string{"a": "1", "b": "2"},
			}, domain.VolumeSpec{
				SizeGB: 2, Type: "fast", Description: "two", Metadata: map[string]string{"b": "3", "c/d": "4"},
			}, 2, func(s *sandbox, id string) error {
				return s.Cloud.SetVolumeMetadata(t.Context(), id, nil, []string{markKey})
			},
		},
		domain.KindImage: {
			ImageDriver{}, domain.ImageSpec{
				DiskFormat: "raw", Content: content, MinDiskGB: 1, Tags: []string{"a", "b"},
				Properties: map[string]string{"os_distro": "debian", "a/b~c": "1"},
			}, domain.ImageSpec{
				DiskFormat: "raw", Content: content, MinDiskGB: 2, MinRAMMB: 64, Tags: []string{"b", "c"},
				Properties: map[string]string{"os_distro": "ubuntu", "os_version": "24.04"},
			}, 1, func(s *sandbox, id string) error {
				return s.Cloud.ChangeImage(t.Context(), id, domain.ImageChange{Tags: []string{"a", "b"}})
			},
		},
		domain.KindBalancer: {
			NewBalancerDriver(), webSpec(here.Network), domain.BalancerSpec{
				Network: here.NetworkID, Listeners: []domain.ListenerSpec{
					{Protocol: "HTTP", Port: 80, MemberPort: 8080, Deployment: "web", Algorithm: "LEAST_CONNECTIONS"},
					{Protocol: "TCP", Port: 5433, MemberPort: 5432, Addresses: []string{"192.0.2.8"}},
				},
			}, 0, func(s *sandbox, id string) error {
				return s.Cloud.RenameLoadBalancer(t.Context(), id, "thing", []string{})
			},
		},
		domain.KindSecret: {driver: SecretDriver{}, spec: domain.SecretSpec{}},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := newSandbox(t, tc.driver, tc.spec)
			s.in.Inventory = deployed(here.Network, "192.0.2.1", "192.0.2.2")
			s.in.Secrets.Payload = testkit.Canary("a payload of a secret")
			first := s.lost(t)
			o, _ := s.settle(t)
			if o.ID != first.ID {
				t.Errorf("it is another one: %+v", o)
			}
			if tc.changed != nil {
				s.unmarked(t, o, func() error { return tc.unmark(s, o.ID) })
				s.in.Inventory = deployed(here.Network, "192.0.2.2", "192.0.2.3")
				s.declare(t, tc.changed)
				s.in.Name = "other"
				var updates int
				if o, updates = s.settle(t); o.ID != first.ID || o.Name != "other" ||
					tc.updates > 0 && updates != tc.updates {
					t.Errorf("after %d updates it is %+v", updates, o)
				}
			}
			s.remove(t)
			if err := s.driver.Delete(t.Context(), s.Session, o); err != nil {
				t.Errorf("an absent one: %v", err)
			}
		})
	}
}
