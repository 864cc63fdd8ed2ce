package managed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// balancing is a driver of load balancers that names the server "thing", and records which members its listener should
// have.
type balancing struct {
	scripted

	want string
	err  error
}

func (*balancing) Needs(json.RawMessage) []Ref { return []Ref{{domain.KindMachine, "thing"}} }

func (d *balancing) Differences(in Desired, _ Object) []Difference {
	members, err := in.Inventory.poolMembers(domain.ListenerSpec{MemberPort: 80, Machines: []string{"thing"}}, "")
	d.want, d.err = endpoints(members), err
	return nil
}

// unreadable is a driver of servers that can be listed, or not.
type unreadable struct {
	scripted

	findErr error
}

func (d *unreadable) Find(_ context.Context, _ Session, id string) (Object, error) {
	return Object{ID: id}, d.findErr
}

// TestBalancerOfUnknownServers: while the servers of a load balancer cannot be read, it is not known which members it
// should have, and it keeps those that it has.
func TestBalancerOfUnknownServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers := &unreadable{scripted: scripted{kind: domain.KindMachine}}
		balancers := &balancing{scripted: scripted{kind: domain.KindBalancer}}
		e, s := newPass(&servers.scripted, &balancers.scripted)
		e.Drivers[domain.KindMachine], e.Drivers[domain.KindBalancer] = servers, balancers
		address := domain.Address{IP: "192.0.2.1", Type: "fixed"}
		server := domain.Server{ID: "s", Status: "ACTIVE", Addresses: []domain.Address{address}}
		for n := range s.all {
			s.all[n].ObservedRevision, s.all[n].Request, s.all[n].Status = 1, "", domain.ManagedReady
			member := domain.Member{
				ID: uuid.New(), ManagedID: s.all[n].ID, Revision: 1, Status: domain.MemberReady, WasReady: true,
				MayHaveData: true,
			}
			found := map[uuid.UUID]Object{}
			if member.ObjectID = "s"; n == 0 {
				servers.found, found[member.ID] = found, Object{ID: "s", State: ObjectReady, Raw: server}
			} else {
				member.ObjectID = "b"
				balancers.found, found[member.ID] = found, Object{ID: "b", State: ObjectReady, Raw: "it"}
			}
			s.members[member.ID] = member
		}
		s.run(t, e)
		if balancers.want != "192.0.2.1:80" || balancers.err != nil {
			t.Fatalf("it should have %q, %v", balancers.want, balancers.err)
		}
		for _, change := range []func(){
			func() { servers.listErr = errors.New("nova is unavailable") },
			func() { servers.listErr, servers.found = nil, nil }, // the cell is down
			func() { servers.findErr = apperr.New(apperr.Unavailable, "nova is unavailable") },
		} {
			change()
			s.run(t, e)
			if wait, ok := errors.AsType[WaitError](balancers.err); !ok || wait.Reason != "ServersUnknown" {
				t.Errorf("%v, %v: it should have %q, %v", servers.listErr, servers.findErr, balancers.want,
					balancers.err)
			}
		}
	})
}

// TestMissedOnce: a server that Nova does not find once, such as after a failover to a database that lags, is neither
// made again nor forgotten, whatever is declared meanwhile. The next miss is a first one again.
func TestMissedOnce(t *testing.T) {
	t.Parallel()
	for what, declare := range map[string]func(*domain.Managed){
		"repaired": func(m *domain.Managed) { m.Repair = domain.RepairAuto },
		"declared": func(m *domain.Managed) { m.Request, m.Status = domain.ManagedUpdate, domain.ManagedUpdating },
		"deleted":  func(m *domain.Managed) { m.Request, m.Status = domain.ManagedDelete, domain.ManagedDeleting },
		"scaled": func(m *domain.Managed) {
			m.Kind, m.Spec, m.Revision = domain.KindDeployment, []byte(`{"count": 0}`), 2
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			e, s, d, p := newFleet(1)
			e.Drivers[domain.KindDeployment] = d
			var member domain.Member
			for _, member = range s.members {
			}
			object := d.found[member.ID]
			declare(&s.all[0])
			for range 2 {
				clear(d.found)
				s.all[0].NextAt = time.Now()
				s.runProject(t, e, p)
				if left, ok := s.members[member.ID]; !ok || len(s.members) != 1 || left.Status != domain.MemberReady ||
					left.MissedAt.IsZero() {
					t.Errorf("%s: it has the members %+v", what, s.members)
				}
				if s.dueIn > domain.MissedFor {
					t.Errorf("%s: it is due in %s", what, s.dueIn)
				}
				time.Sleep(domain.MissedFor - time.Second)
				if what == "deleted" || what == "scaled" {
					break
				}
				d.found[member.ID] = object
				s.all[0].NextAt = time.Now()
				s.runProject(t, e, p)
				if left := s.members[member.ID]; !left.MissedAt.IsZero() || left.ObjectID != object.ID {
					t.Errorf("%s: found again, it is %+v", what, left)
				}
				time.Sleep(2 * time.Second)
			}
			if what == "deleted" {
				time.Sleep(time.Second)
				if s.runProject(t, e, p); len(s.all) != 0 {
					t.Errorf("it is not deleted: %+v", s.all)
				}
			}
		})
	}
}

// cells are those of a Nova. One may be down.
type cells struct {
	open
	Cloud

	err error
}

func (c *cells) Open(context.Context, domain.Connection, string) (Session, error) {
	return Session{Cloud: c}, nil
}
func (c *cells) CellsUp(context.Context, string) error { return c.err }

// TestNotFoundOnce: a member whose deletion OpenStack has not accepted yet is not forgotten because one list, or one
// read, does not find its server, nor while the server's cell may be down.
func TestNotFoundOnce(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"s-web-a", ""} {
		synctest.Test(t, func(t *testing.T) {
			e, s, d, p := newFleet(1)
			nova := &cells{err: apperr.New(apperr.BadGateway, "a cell is down")}
			e.Sessions = nova
			s.all[0].Request, s.all[0].Status = domain.ManagedDelete, domain.ManagedDeleting
			for _, member := range s.members {
				member.ObjectID, member.Status, member.IsRequested = id, domain.MemberDeleting, true
				s.members[member.ID] = member
			}
			found := maps.Clone(d.found)
			p.ScanAt = time.Now()
			look := func(isFound bool) {
				t.Helper()
				if clear(d.found); isFound {
					maps.Copy(d.found, found)
				}
				s.runProject(t, e, p)
				time.Sleep(domain.MissedFor + openCall)
			}
			if look(false); id == "" {
				look(false)
			}
			nova.err = nil
			if id == "" {
				look(false)
			}
			if len(s.members) != 1 {
				t.Fatalf("%q: it is forgotten", id)
			}
			look(true)
			if !slices.Equal(d.deleted, []string{"s-web-a"}) {
				t.Errorf("%q: deleted are %q", id, d.deleted)
			}
			if look(false); len(s.all) != 0 {
				t.Errorf("%q: it is not deleted: %+v", id, s.members)
			}
		})
	}
}

// TestCopyOfDeleted: what has the mark of a deleted object, such as a volume that was restored from its backup, is
// neither deleted nor adopted. What a creation has left whose answer was lost takes the place of the deleted one.
func TestCopyOfDeleted(t *testing.T) {
	t.Parallel()
	for what, declare := range map[string]func(*domain.Managed, *domain.Member){
		"deleted by us": func(m *domain.Managed, member *domain.Member) {
			m.Request, m.Status, member.Status = domain.ManagedDelete, domain.ManagedDeleting, domain.MemberDeleting
			member.Writes = 1
		},
		"deleted by others": func(*domain.Managed, *domain.Member) {},
	} {
		for name, age := range map[string]time.Duration{"copy": copyAfter, "twin": time.Second, "soon": time.Second} {
			synctest.Test(t, func(t *testing.T) {
				e, s, d, p := newFleet(1)
				for id, member := range s.members {
					member.CreatedAt = time.Now()
					if member.CreateCalls = 2; name == "soon" { // a copy, too: there was one call
						member.CreateCalls = 1
					}
					declare(&s.all[0], &member)
					s.members[id] = member
					d.found[id] = Object{
						ID: name, State: ObjectReady, Raw: "it", Keep: true, CreatedAt: time.Now().Add(age),
					}
				}
				p.ScanAt = time.Now()
				for range 3 {
					s.runProject(t, e, p)
					time.Sleep(domain.MissedFor + time.Second)
				}
				isOurs := slices.Contains(d.deleted, name)
				for _, member := range s.members {
					isOurs = isOurs || member.ObjectID == name
				}
				if isOurs != (name == "twin") {
					t.Errorf("%s, %s: deleted are %q, left is %+v", what, name, d.deleted, s.members)
				}
			})
		}
	}
}

// noFlavors is a Nova behind a proxy that has lost a path.
type noFlavors struct{ *fakeNova }

func (noFlavors) Flavors(context.Context) ([]domain.Flavor, error) {
	return nil, apperr.New(apperr.NotFound, "no such path")
}

// TestNoFlavors: a server is not missed when Nova's list of flavors ends with a 404.
func TestNoFlavors(t *testing.T) {
	t.Parallel()
	nova, _ := newFakeNova("tiny")
	_, err := (&MachineDriver{}).Find(t.Context(), Session{Cloud: noFlavors{nova}}, "s")
	if code := apperr.CodeOf(err); err == nil || code == apperr.NotFound {
		t.Errorf("it fails with %q: %v", code, err)
	}
}

// stuck is a project some of whose services hang, and counts the calls that do.
type stuck struct {
	*memory
	open
	changingDriver // of servers

	calls    atomic.Int32
	keystone bool // hangs, but for images
}

func (h *stuck) hang(ctx context.Context) error {
	if ctx.Err() == nil {
		h.calls.Add(1)
	}
	<-ctx.Done()
	return apperr.Wrap(apperr.Timeout, ctx.Err(), "it did not answer in time")
}

func (h *stuck) Find(ctx context.Context, _ Session, _ string) (Object, error) {
	return Object{}, h.hang(ctx)
}

func (h *stuck) Finish(ctx context.Context, _ Session, _ domain.Managed) error { return h.hang(ctx) }

func (h *stuck) Open(ctx context.Context, c domain.Connection, _ string) (Session, error) {
	if h.keystone && c.Reason != string(domain.KindImage) {
		return Session{}, h.hang(ctx)
	}
	return Session{Cloud: stuckGlance{h: h}}, nil
}

func (h *stuck) Connections(context.Context, string) (map[uuid.UUID]*domain.Connection, error) {
	known := map[uuid.UUID]*domain.Connection{}
	for _, m := range h.all {
		known[m.ID] = &domain.Connection{Status: domain.ConnectionActive, Reason: string(m.Kind)}
		if h.keystone {
			known[m.ID].ID = m.ID
		}
	}
	return known, nil
}

// stuckGlance is the cloud of a project whose Glance hangs.
type stuckGlance struct {
	sameCloud

	h *stuck
}

func (g stuckGlance) Images(ctx context.Context, _ string) ([]domain.Image, error) {
	return nil, g.h.hang(ctx)
}

// newStuck has servers that are as declared, and an image that is to be made.
func newStuck(servers int) (Engine, *stuck, *bool) {
	h, isMade := &stuck{memory: &memory{members: map[uuid.UUID]domain.Member{}}}, false
	h.scripted = scripted{kind: domain.KindMachine, found: map[uuid.UUID]Object{}}
	for n := range servers {
		m := domain.Managed{
			ID: uuid.New(), Kind: domain.KindMachine, Name: fmt.Sprintf("s-%d", n), Revision: 1, ObservedRevision: 1,
			Spec: []byte(`{"flavor": "tiny", "image": "cirros"}`), Status: domain.ManagedReady,
		}
		member := domain.Member{
			ID: uuid.New(), ManagedID: m.ID, Revision: 1, ObjectID: m.Name, Status: domain.MemberReady, WasReady: true,
			MayHaveData: true,
		}
		h.all, h.members[member.ID] = append(h.all, m), member
		h.changingDriver.found[member.ID] = Object{ID: m.Name, State: ObjectReady, Raw: domain.Server{
			Flavor: domain.FlavorRef{Name: "tiny"}, Image: &domain.ImageRef{ID: imageOne},
		}}
	}
	h.all = append(h.all, domain.Managed{
		ID: uuid.New(), Kind: domain.KindImage, Name: "thing", Revision: 1, Request: domain.ManagedCreate,
		Spec: []byte("{}"),
	})
	images := &scripted{kind: domain.KindImage, create: func() error { isMade = true; return nil }}
	return Engine{
		Store: h, Sessions: h, Drivers: map[domain.Kind]Driver{domain.KindMachine: h, domain.KindImage: images},
		Wake: func(...string) {},
	}, h, &isMade
}

// TestServicesThatHang: a service that hangs takes a pass no longer than one list, however many resources need it, and
// the rest of the project goes on: Glance, for which image a changed name is; Nova, for servers that no list shows and
// for what belongs to deleted ones; Keystone.
func TestServicesThatHang(t *testing.T) {
	t.Parallel()
	isUnknown := func(m domain.Managed) bool { return conditionOf(m, domain.ConditionReady).Status == "Unknown" }
	for name, tc := range map[string]struct {
		change func(*stuck, *domain.Managed)
		shows  func(domain.Managed) bool // reports whether a server shows that its service hangs
		calls  int32                     // that hang
		took   time.Duration
	}{
		"Glance": {func(_ *stuck, m *domain.Managed) {
			m.Made = map[int]domain.Revision{1: {Number: 1, Spec: m.Spec}}
			m.Revision, m.Spec = 2, []byte(`{"flavor": "tiny", "image": "`+m.Name+`"}`)
		}, isUnknown, 1, listTime},
		"Nova": {func(h *stuck, _ *domain.Managed) {
			clear(h.changingDriver.found)
		}, func(m domain.Managed) bool { return m.Status == domain.ManagedUpdating }, parallelFinds, listTime},
		"Nova's server groups": {func(h *stuck, m *domain.Managed) {
			clear(h.members)
			m.Request, m.Status = domain.ManagedDelete, domain.ManagedDeleting
		}, func(m domain.Managed) bool { return m.Status == domain.ManagedDeleting }, 1, stepTime},
		"Keystone": {func(h *stuck, _ *domain.Managed) { h.keystone = true }, isUnknown, 1, listTime},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, h, isMade := newStuck(8)
				for n := range h.all {
					if h.all[n].Kind == domain.KindMachine {
						tc.change(h, &h.all[n])
					}
				}
				began := time.Now()
				h.run(t, e)
				if took := time.Since(began); took != tc.took || h.calls.Load() != tc.calls || !*isMade {
					t.Errorf("it takes %s and %d calls, and the image is made: %t", took, h.calls.Load(), *isMade)
				}
				for _, m := range h.all {
					if m.Kind == domain.KindMachine && !tc.shows(m) {
						t.Errorf("%s is %s, %s: %+v", m.Name, m.Status, m.Reason, m.Conditions)
					}
				}
			})
		})
	}
}

// TestServiceThatHangsTakesNoPass: a service whose steps hang for longer than a whole pass keeps no other one waiting.
func TestServiceThatHangsTakesNoPass(t *testing.T) {
	t.Parallel()
	for _, kind := range domain.Kinds() {
		synctest.Test(t, func(t *testing.T) {
			began, others := time.Now(), atomic.Int32{}
			e, s := newPass(&scripted{kind: kind, create: func() error {
				time.Sleep(stepTime)
				return apperr.New(apperr.Timeout, "no answer within %s", stepTime)
			}})
			s.all[0].Spec = []byte(`{"count": 1}`)
			s.repeat(int(passTime/stepTime+1) * parallelSteps)
			for _, other := range domain.Kinds() {
				if other == kind {
					continue
				}
				e.Drivers[other] = &scripted{kind: other, create: func() error {
					if others.Add(1); time.Since(began) > time.Second {
						t.Errorf("%s begins %s after %s that hang", other, time.Since(began), kind)
					}
					return nil
				}}
				s.all = append(s.all, domain.Managed{
					ID: uuid.New(), Kind: other, Name: "other", Revision: 1, Request: domain.ManagedCreate,
					Spec: s.all[0].Spec,
				})
			}
			_ = e.Run(t.Context(), domain.NewClaim(), domain.ManagedProject{})
			if int(others.Load()) != len(domain.Kinds())-1 {
				t.Errorf("%s: %d others are made", kind, others.Load())
			}
		})
	}
}
