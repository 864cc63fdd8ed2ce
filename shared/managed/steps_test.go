package managed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
)

// changingDriver has one object, which lacks what left says until an update succeeds.
type changingDriver struct {
	scripted

	left     []Difference
	errs     []error // of the next updates
	checkErr error
	hangs    bool   // Check does, until its context ends
	die      func() // a process that dies right before a call that changes an object; nil = it lives
	calls    int    // of those
}

func (d *changingDriver) Differences(Desired, Object) []Difference { return slices.Clone(d.left) }

// call is a call that changes an object.
func (d *changingDriver) call() error {
	if d.die != nil {
		d.die()
		return context.Canceled
	}
	d.calls++
	return nil
}

func (d *changingDriver) Create(ctx context.Context, s Session, in Desired) (string, error) {
	if in.Member.ObjectID != "" { // it completes an object
		return in.Member.ObjectID, d.call()
	}
	return d.scripted.Create(ctx, s, in)
}

func (d *changingDriver) Delete(ctx context.Context, s Session, o Object) error {
	if err := d.call(); err != nil {
		return err
	}
	return d.scripted.Delete(ctx, s, o)
}

func (d *changingDriver) Update(context.Context, Session, Desired, Object, []Difference) error {
	if err := d.call(); err != nil {
		return err
	}
	if len(d.errs) > 0 {
		err := d.errs[0]
		d.errs = d.errs[1:]
		return err
	}
	d.left = nil
	return nil
}

func (d *changingDriver) Check(ctx context.Context, _ Session, _ Desired) error {
	if d.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return d.checkErr
}

// newChange has a server of revision 1, which is to have revision 2. change changes its member.
func newChange(left Difference, change func(*domain.Member)) (Engine, *memory, *changingDriver) {
	d := &changingDriver{scripted: scripted{kind: domain.KindMachine}, left: []Difference{left}}
	e, s := newPass(&d.scripted)
	e.Drivers[domain.KindMachine] = d
	m := &s.all[0]
	m.Revision, m.ObservedRevision, m.Request = 2, 1, domain.ManagedUpdate
	m.Spec = []byte(`{"volumes": ["data"], "update": "replace"}`)
	member := domain.Member{
		ID: uuid.New(), ManagedID: m.ID, Revision: 1, ObjectID: "s", Status: domain.MemberReady, WasReady: true,
		MayHaveData: true,
		UpdatedAt:   time.Now(),
	}
	change(&member)
	s.members[member.ID] = member
	d.found = map[uuid.UUID]Object{member.ID: {ID: "s", State: ObjectReady, Raw: "it"}}
	return e, s, d
}

// only is the only member.
func (s *memory) only(t *testing.T) (found domain.Member) {
	t.Helper()
	for _, found = range s.members {
	}
	if len(s.members) != 1 {
		t.Errorf("there are the members %+v", s.members)
	}
	return found
}

// ids are the ids of the members.
func (s *memory) ids() []uuid.UUID { return slices.Collect(maps.Keys(s.members)) }

// pauses runs so often, each time when the member may be tried again, and returns the pauses in seconds.
func (s *memory) pauses(t *testing.T, e Engine, times int) (seconds []int) {
	t.Helper()
	for range times {
		s.run(t, e)
		m := s.only(t)
		left := max(time.Until(m.RetryAt), 0)
		seconds = append(seconds, int(left.Seconds()))
		time.Sleep(left)
	}
	return seconds
}

// TestReplacedOnlyIfPossible: a server whose replacement cannot be made, because what it names is not the user's any
// more, is not deleted. It is tried twice, and the reason shows why. Another declaration goes on.
func TestReplacedOnlyIfPossible(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		isMade := false
		e, s, d := newChange(Difference{Field: "configmaps", Way: Replace}, func(*domain.Member) {})
		d.create = func() error { isMade = true; return nil }
		d.checkErr = apperr.InvalidField("spec.key_name", "there is no key pair \"k\"")
		if got := s.pauses(t, e, 2); !slices.Equal(got, []int{5, 10}) {
			t.Errorf("it pauses for %d s", got)
		}
		s.run(t, e)
		m := s.all[0]
		if len(d.deleted) > 0 || isMade || m.Status != domain.ManagedError ||
			!strings.Contains(m.Reason, "not replaced") || !strings.Contains(m.Reason, `no key pair "k"`) {
			t.Errorf("deleted %q, made %t: it is %s, %s", d.deleted, isMade, m.Status, m.Reason)
		}
		n := slices.IndexFunc(m.Conditions, func(c domain.Condition) bool {
			return c.Type == domain.ConditionProgressing
		})
		if c := m.Conditions[n]; c.Status != "False" || c.Reason != "ReplacementsFailed" {
			t.Errorf("it has %+v", c)
		}
		member := s.only(t)
		member.Attempts, member.RetryAt = 0, time.Time{}
		s.members[member.ID], d.checkErr = member, nil
		s.all[0].NextAt = time.Now()
		if s.run(t, e); len(d.deleted) != 1 || !isMade {
			t.Errorf("then it is deleted: %q, and made: %t", d.deleted, isMade)
		}
	})
}

// TestCheckThatHangs: while what replaces a server is looked up, other resources go on, and the servers of all of them
// are looked up beside each other. Nothing is deleted meanwhile.
func TestCheckThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, s, d := newChange(Difference{Field: "configmaps", Way: Replace}, func(*domain.Member) {})
		d.hangs = true
		began, madeAfter := time.Now(), time.Duration(-1)
		e.Drivers[domain.KindImage] = &scripted{kind: domain.KindImage, create: func() error {
			madeAfter = time.Since(began)
			return nil
		}}
		s.all = append(s.all, domain.Managed{
			ID: uuid.New(), Kind: domain.KindImage, Name: "thing", Revision: 1, Request: domain.ManagedCreate,
			Spec: []byte("{}"),
		})
		for _, name := range []string{"b", "c"} {
			m, member := s.all[0], s.members[s.ids()[0]]
			m.ID, m.Name, member.ID = uuid.New(), name, uuid.New()
			member.ManagedID, member.ObjectID = m.ID, name
			s.all, s.members[member.ID] = append(s.all, m), member
			d.found[member.ID] = Object{ID: name, State: ObjectReady, Raw: "it"}
		}
		s.run(t, e)
		if took := time.Since(began); took != stepTime || madeAfter != 0 || len(d.deleted) > 0 {
			t.Errorf("it takes %s, the image is made after %s, and deleted are %q", took, madeAfter, d.deleted)
		}
		for _, m := range s.all {
			if m.Kind == domain.KindMachine && !strings.Contains(m.Reason, "not replaced") {
				t.Errorf("%s is %s, %s", m.Name, m.Status, m.Reason)
			}
		}
	})
}

// TestSecretsOfReplacement: a server is not deleted while the secrets of what replaces it cannot be decrypted.
func TestSecretsOfReplacement(t *testing.T) {
	t.Parallel()
	e, s, d := newChange(Difference{Field: "configmaps", Way: Replace}, func(*domain.Member) {})
	s.all[0].Secrets = []byte("sealed")
	e.Unseal = func(domain.Managed) (domain.ManagedSecrets, error) {
		return domain.ManagedSecrets{}, errors.New("the key is not there")
	}
	s.run(t, e)
	if m := s.all[0]; len(d.deleted) > 0 || !strings.Contains(m.Reason, "cannot be decrypted") {
		t.Errorf("deleted are %q: it is %s, %s", d.deleted, m.Status, m.Reason)
	}
}

// TestDeathsBeforeCalls: a process that dies right before a call has changed nothing. However often that happens, the
// call is made, and its resource does not stop as one whose changes come to nothing.
func TestDeathsBeforeCalls(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*domain.Member, *Object){
		"a change": func(m *domain.Member, _ *Object) { m.Status = domain.MemberUpdating },
		"a completion": func(m *domain.Member, o *Object) {
			m.Revision, m.Status, m.WasReady, o.State = 2, domain.MemberCreating, false, ObjectIncomplete
		},
		"a deletion": func(m *domain.Member, _ *Object) { m.Status = domain.MemberDeleting },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				object := Object{ID: "s", State: ObjectReady, Raw: "it"}
				e, s, d := newChange(Difference{Field: "tags.a", Declared: "a", Way: InPlace}, func(m *domain.Member) {
					change(m, &object)
				})
				for _, id := range s.ids() {
					d.found[id] = object
				}
				for range 3 {
					d.die = func() { // it stores nothing after that
						s.mu.Lock()
						defer s.mu.Unlock()
						s.fenced = true
					}
					if err := e.Run(t.Context(), domain.NewClaim(), domain.ManagedProject{}); err == nil {
						t.Fatal("it did not die")
					}
					s.fenced, d.die = false, nil
					time.Sleep(time.Minute)
				}
				before := d.calls
				s.run(t, e)
				if d.calls != before+1 || s.all[0].Status == domain.ManagedError {
					t.Errorf("%d calls are made: it is %s, %s", d.calls-before, s.all[0].Status, s.all[0].Reason)
				}
			})
		})
	}
}

// TestClaimThatCannotBeRenewed: a pass whose claim cannot be renewed ends before another replica may have the project:
// the calls in flight end, no other one is made, and nothing more is stored.
func TestClaimThatCannotBeRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const claimFor = 20 * time.Second
		var began atomic.Int32
		e, s := newPass(&scripted{kind: domain.KindVolume, create: func() error {
			began.Add(1)
			time.Sleep(claimFor - time.Second) // the call in flight is not noticed to end
			return nil
		}})
		s.repeat(2 * parallelSteps) // more than are made at a time
		s.dueIn = -1
		start := time.Now()
		kept, stop := due.Keep(t.Context(), domain.NewClaim(), claimFor, func(context.Context) error {
			return errors.New("postgres is unavailable")
		})
		defer stop()
		err := e.Run(kept, domain.NewClaim(), domain.ManagedProject{})
		if took := time.Since(start); err == nil || took >= claimFor || began.Load() != parallelSteps || s.dueIn != -1 {
			t.Errorf("it ends after %s with %v, %d calls and a pause of %s", took, err, began.Load(), s.dueIn)
		}
	})
}

// repeat has so many of the first resource.
func (s *memory) repeat(count int) {
	for n := range count - 1 {
		m := s.all[0]
		m.ID, m.Name = uuid.New(), fmt.Sprint(m.Name, n)
		s.all = append(s.all, m)
	}
}

// TestNewServerIsCompleted: what a new server lacks is added until that succeeds, after pauses that grow, also in an
// update that stops after two failures. It is never drift, and the reason is that of the call.
func TestNewServerIsCompleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		isNew := func(m *domain.Member) { m.Revision, m.Status, m.WasReady = 2, domain.MemberCreating, false }
		e, s, d := newChange(Difference{Field: "tags.a", Declared: "a", Way: InPlace}, isNew)
		rejected := apperr.New(apperr.Invalid, "nova rejects the tag")
		unavailable := apperr.New(apperr.Unavailable, "nova rejects nothing, and is unavailable")
		d.errs = []error{unavailable, rejected, rejected, rejected}
		for n, want := range []int{5, 10, 20, 40} {
			if got := s.pauses(t, e, 1); got[0] != want {
				t.Errorf("after failure %d it pauses for %d s", n+1, got)
			}
			m := s.all[0]
			if m.Status != domain.ManagedError || !strings.Contains(m.Reason, "nova rejects") || len(m.Drift) > 0 {
				t.Errorf("after failure %d it is %s, %s, with the drift %+v", n+1, m.Status, m.Reason, m.Drift)
			}
		}
		for range 2 {
			s.run(t, e)
		}
		if m := s.all[0]; m.Status != domain.ManagedReady || !s.only(t).WasReady || len(d.left) > 0 {
			t.Errorf("it is %s, %s, with %+v", m.Status, m.Reason, s.members)
		}
	})
}

// TestWaitsForLonger: a change, or a deletion, that waits for something else is tried again after pauses that grow to a
// minute. That is no failure.
func TestWaitsForLonger(t *testing.T) {
	t.Parallel()
	const reason = "volume data is attached to server x"
	for _, isDeletion := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			difference, want := Difference{Field: "volumes.data", Declared: "v", Way: InPlace}, domain.ManagedUpdating
			e, s, d := newChange(difference, func(m *domain.Member) {
				if isDeletion {
					m.Status = domain.MemberDeleting
				}
			})
			d.errs = slices.Repeat([]error{Waits("VolumeInUse", reason)}, 7)
			if isDeletion {
				s.all[0].Request, want = domain.ManagedDelete, domain.ManagedDeleting
				e.Drivers[domain.KindMachine] = attachedDriver{d}
			}
			if got := s.pauses(t, e, 6); !slices.Equal(got, []int{5, 10, 20, 40, 60, 60}) {
				t.Errorf("deletion %t: it pauses for %d s", isDeletion, got)
			}
			for _, pause := range []time.Duration{0, driftPause / 2} {
				time.Sleep(pause)
				if s.run(t, e); s.all[0].Status != want || s.all[0].Reason != reason || s.only(t).Attempts > 0 {
					t.Errorf("deletion %t: it is %s, %s, with %+v", isDeletion, s.all[0].Status, s.all[0].Reason,
						s.members)
				}
			}
		})
	}
}

// attachedDriver has an object that is in use.
type attachedDriver struct{ *changingDriver }

func (attachedDriver) Delete(context.Context, Session, Object) error {
	return Waits("VolumeInUse", "volume data is attached to server x")
}

// TestExtraWritesNoMember: the deletion of an object that was made twice writes nothing of the member, whose own step
// may have stored something since.
func TestExtraWritesNoMember(t *testing.T) {
	t.Parallel()
	e, s, d := newChange(Difference{}, func(m *domain.Member) { m.Revision = 2 })
	d.left = nil
	for id, o := range d.found {
		o.Extra = []Object{{ID: "extra", State: ObjectReady}}
		d.found[id] = o
	}
	if s.run(t, e); s.saves > 0 || !slices.Equal(d.deleted, []string{"extra"}) {
		t.Errorf("it deletes %q, and writes members %d times", d.deleted, s.saves)
	}
}

// TestServersWithVolumesGoFirst: a server with volumes is deleted before the one that replaces it is made, and others
// after that.
func TestServersWithVolumesGoFirst(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{`{}`: "create 0", `{"volumes": ["data"]}`: "create 0, delete 0"} {
		m := resource{Managed: domain.Managed{Kind: domain.KindMachine, Revision: 2, Spec: []byte(spec)}}
		p := decide(m.target(), []observed{member(0, unlike(Replace, true))}, testNow)
		if got := stepsOf(p); got != want {
			t.Errorf("%s: it takes the steps %q, want %q", spec, got, want)
		}
	}
}

// TestUserDataOfSteps: what a server is made or rebuilt with is stored before the call. It is forgotten when nothing
// was sent, and kept when the call may have made the server: a later one finds it, with what it was made with.
func TestUserDataOfSteps(t *testing.T) {
	t.Parallel()
	digest := Desired{
		Resource: domain.Managed{Kind: domain.KindMachine}, Spec: []byte(`{"volumes": ["data"], "update": "replace"}`),
	}.userData()
	for name, tc := range map[string]struct {
		difference Difference
		before     string
		err        error
		want       string
	}{
		"rebuilt": {difference: Difference{Field: "image", Way: InPlace, Disrupts: true}, before: "old", want: digest},
		"resized": {difference: Difference{Field: "flavor", Way: InPlace, Disrupts: true}, before: "old", want: "old"},
		"rejected": {
			difference: Difference{Field: "image", Way: InPlace, Disrupts: true}, before: "old",
			err: apperr.New(apperr.Invalid, "no"), want: "old",
		},
		"rebuilt, and the answer is lost": {
			difference: Difference{Field: "image", Way: InPlace, Disrupts: true}, before: "old",
			err: apperr.New(apperr.Timeout, "no answer"), want: digest,
		},
		"a rebuild that is not sent": {
			difference: Difference{Field: "image", Way: InPlace, Disrupts: true}, before: "old",
			err: apperr.Wrap(apperr.Unavailable, apperr.ErrNotSent, "nova cannot be reached"), want: "old",
		},
		"fails before the rebuild": {
			difference: Difference{Field: "image", Way: InPlace, Disrupts: true}, before: "old",
			err: unsent(apperr.New(apperr.Timeout, "no answer")), want: "old",
		},
		"a rebuild that waits": {
			difference: Difference{Field: "image", Way: InPlace, Disrupts: true}, before: "old",
			err: Waits("NotReady", "it waits"), want: "old",
		},
		"nothing to rebuild": {
			difference: Difference{Field: "image", Way: InPlace, Disrupts: true}, before: "old",
			err: ErrNothingLeft, want: "old",
		},
		"made":            {want: digest},
		"made later":      {err: apperr.New(apperr.Unavailable, "no answer"), want: digest},
		"waits":           {err: Waits("NotReady", "it waits"), want: ""},
		"waits after one": {before: "old", err: Waits("NotReady", "it waits"), want: "old"},
	} {
		synctest.Test(t, func(t *testing.T) {
			e, s, d := newChange(tc.difference, func(m *domain.Member) {
				if m.UserData = tc.before; tc.difference.Field == "" {
					m.ObjectID, m.Status, m.WasReady = "", domain.MemberCreating, false
				}
			})
			if tc.difference.Field == "" {
				d.left, d.found = nil, nil
			}
			d.create = func() error { return tc.err }
			d.errs = []error{tc.err}
			s.run(t, e)
			if got := s.only(t).UserData; got != tc.want {
				t.Errorf("%s: it is %q, want %q", name, got, tc.want)
			}
			if got, want := s.only(t).IsRebuilt, strings.HasPrefix(name, "rebuilt"); got != want {
				t.Errorf("%s: it is rebuilt: %t, want %t", name, got, want)
			}
		})
	}
}

// TestUnsentRebuild: what fails before the call that rebuilds a server leaves the server with its user_data.
func TestUnsentRebuild(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*fakeNova, *Desired){
		"a tag": func(f *fakeNova, in *Desired) {
			f.tagErr = apperr.New(apperr.Timeout, "no answer")
			in.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "tags": ["a"]}`)
		},
		"the image": func(_ *fakeNova, in *Desired) { in.Spec = []byte(`{"flavor": "tiny", "image": "none"}`) },
		"the files": func(_ *fakeNova, in *Desired) {
			in.Spec = []byte(`{"flavor": "tiny", "image": "cirros", "configmaps": ["none"]}`)
		},
	} {
		nova, in := newFakeNova("tiny")
		nova.server.Image = &domain.ImageRef{ID: "other"}
		in.Made.Spec = []byte(`{"flavor": "tiny", "image": "other"}`)
		change(nova, &in)
		driver, o := &MachineDriver{}, machineObject(nova.server)
		err := driver.Update(t.Context(), Session{Cloud: nova}, in, o, driver.Differences(in, o))
		if err == nil || !errors.Is(err, errUnsent) {
			t.Errorf("%s: it fails with %v", name, err)
		}
	}
}
