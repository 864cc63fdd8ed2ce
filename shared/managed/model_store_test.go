package managed

import (
	"bytes"
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// modelStore is the database in memory: the project p with its resources, their members, and the orders of servers.
type modelStore struct {
	mu        sync.Mutex
	project   domain.ManagedProject
	claim     uuid.UUID // of the project
	dooms     func(domain.Member)
	isWoken   bool // something was declared or reported since that
	resources []*domain.Managed
	revisions map[uuid.UUID]map[int]domain.Revision
	members   map[uuid.UUID]domain.Member
	orders    map[uuid.UUID]*modelOrder
}

type modelOrder struct {
	domain.Order

	claim   uuid.UUID
	claimed time.Time // until then
}

func newModelStore() *modelStore {
	return &modelStore{
		project:   domain.ManagedProject{ProjectID: "p", DueAt: time.Now(), ScanAt: time.Now()},
		revisions: map[uuid.UUID]map[int]domain.Revision{}, members: map[uuid.UUID]domain.Member{},
		orders: map[uuid.UUID]*modelOrder{},
	}
}

// find returns the resource of a kind and name; nil = it is not declared.
func (s *modelStore) find(kind domain.Kind, name string) *domain.Managed {
	for _, m := range s.resources {
		if m.Kind == kind && m.Name == name {
			return m
		}
	}
	return nil
}

// byID returns a resource; nil = it is deleted.
func (s *modelStore) byID(id uuid.UUID) *domain.Managed {
	for _, m := range s.resources {
		if m.ID == id {
			return m
		}
	}
	return nil
}

// declare stores a declaration as postgres.Managed.Declare does.
func (s *modelStore) declare(in domain.Managed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, m := time.Now(), s.find(in.Kind, in.Name)
	if m == nil {
		in.ID, in.ProjectID, in.UserID, in.CreatedAt = uuid.New(), "p", "u", now
		in.Request, in.Status = domain.ManagedCreate, domain.ManagedPending
		m = &in
		s.resources = append(s.resources, m)
		s.revisions[m.ID] = map[int]domain.Revision{}
		s.revise(m)
	} else {
		isSame := bytes.Equal(m.Spec, in.Spec) && bytes.Equal(m.Digest, in.Digest) &&
			reflect.DeepEqual(m.Schedule, in.Schedule)
		hasFailed := m.Request == "" && (m.Status == domain.ManagedDegraded || m.Status == domain.ManagedError)
		switch {
		case !isSame:
			m.Spec, m.Digest, m.Secrets, m.Schedule, m.Repair = in.Spec, in.Digest, in.Secrets, in.Schedule, in.Repair
			m.Request, m.Status, m.Reason = domain.ManagedUpdate, domain.ManagedUpdating, ""
			s.revise(m)
		case m.Repair != in.Repair:
			m.Repair = in.Repair
			m.Version++
		case hasFailed:
			m.Request = domain.ManagedUpdate
		}
		s.retry(m.ID)
	}
	m.NextAt, s.project.DueAt, s.isWoken = now, now, true
}

// revise stores what is declared as a new revision.
func (s *modelStore) revise(m *domain.Managed) {
	m.Revision++
	m.Version++
	s.revisions[m.ID][m.Revision] = domain.Revision{
		Number: m.Revision, Spec: m.Spec, Digest: m.Digest, Secrets: m.Secrets, Schedule: m.Schedule,
		CreatedAt: time.Now(),
	}
}

// retry has what failed of a resource tried again.
func (s *modelStore) retry(id uuid.UUID) {
	for _, member := range s.members {
		if member.ManagedID == id {
			member.Attempts, member.RetryAt, member.Writes = 0, time.Time{}, 0
			s.members[member.ID] = member
		}
	}
}

// delete stores that a resource is to be deleted.
func (s *modelStore) delete(m *domain.Managed, orphan bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retry(m.ID)
	m.Request, m.Status, m.Reason, m.Orphan = domain.ManagedDelete, domain.ManagedDeleting, "", orphan
	m.Version++
	m.NextAt, s.project.DueAt, s.isWoken = time.Now(), time.Now(), true
}

// take claims the project.
func (s *modelStore) take() (domain.Claim, domain.ManagedProject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	claim := domain.NewClaim()
	s.claim, s.isWoken = claim.ID, false
	s.project.DueAt = time.Now().Add(claimFor)
	return claim, s.project
}

// claimFor is how long the claim of a process that has died lasts.
const claimFor = 20 * time.Second

// storeView is the store as one process reaches it.
type storeView struct {
	*modelStore

	run *modelRun
}

// save writes something under the claim of the project.
func (s storeView) save(what string, claim domain.Claim, do func() error) error {
	how := s.run.fault("db", what, saveFaults)
	if s.run.dead() {
		return context.Canceled
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch how {
	case "crash before":
		return s.run.die()
	case "503":
		return apperr.New(apperr.Unavailable, "postgres is away")
	case "fenced":
		s.claim = uuid.New()
	}
	if claim.ID != s.claim {
		return domain.ErrFenced
	}
	err := do()
	switch how {
	case "crash after":
		return s.run.die()
	case "lost":
		return apperr.New(apperr.Unavailable, "postgres is away")
	}
	return err
}

func (s storeView) Load(context.Context, string) (all []domain.Managed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stored := range s.resources {
		m := *stored
		m.LoadedNextAt, m.Members, m.Made = m.NextAt, nil, map[int]domain.Revision{}
		m.Conditions, m.Drift = slices.Clone(m.Conditions), slices.Clone(m.Drift)
		for _, r := range s.revisions[m.ID] {
			if r.Number != m.Revision && r.Number == m.ObservedRevision {
				m.Made[r.Number] = r
			}
		}
		for _, member := range s.members {
			if member.ManagedID != m.ID {
				continue
			}
			m.Members = append(m.Members, member)
			if r, ok := s.revisions[m.ID][member.Revision]; ok && r.Number != m.Revision {
				m.Made[r.Number] = r
			}
		}
		slices.SortFunc(m.Members, func(a, b domain.Member) int { return a.CreatedAt.Compare(b.CreatedAt) })
		all = append(all, m)
	}
	return all, nil
}

func (s storeView) Connections(context.Context, string) (map[uuid.UUID]*domain.Connection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := map[uuid.UUID]*domain.Connection{}
	for _, m := range s.resources {
		known[m.ID] = &domain.Connection{Status: domain.ConnectionActive}
	}
	return known, nil
}

func (s storeView) ReleaseProject(
	_ context.Context, claim domain.Claim, p domain.ManagedProject, dueIn time.Duration,
) error {
	return s.save("release", claim, func() error {
		s.claim = uuid.Nil
		s.project.DueAt = time.Now().Add(dueIn)
		if s.isWoken {
			s.project.DueAt = time.Now()
		}
		if s.project.Attempts = p.Attempts; !p.NextScanAt.IsZero() {
			s.project.ScanAt = p.NextScanAt
		}
		return nil
	})
}

func (s storeView) HoldsProject(_ context.Context, claim domain.Claim, _ string) error {
	return s.save("hold", claim, func() error { return nil })
}

func (s storeView) SaveMember(_ context.Context, claim domain.Claim, _ string, m domain.Member) error {
	if m.Status == domain.MemberDeleting {
		s.dooms(m)
	}
	return s.save("member "+string(m.Status), claim, func() error {
		if s.byID(m.ManagedID) == nil {
			return domain.ErrChanged
		}
		before, isKnown := s.members[m.ID]
		if m.CreatedAt = before.CreatedAt; !isKnown {
			m.CreatedAt = time.Now()
		}
		if before.UpdatedAt = m.UpdatedAt; before == m {
			return nil
		}
		m.UpdatedAt = time.Now()
		s.members[m.ID] = m
		return nil
	})
}

func (s storeView) DeleteMember(_ context.Context, claim domain.Claim, _ string, id uuid.UUID) error {
	return s.save("forget", claim, func() error {
		delete(s.members, id)
		return nil
	})
}

func (s storeView) SaveStatus(_ context.Context, claim domain.Claim, all ...*domain.Managed) error {
	return s.save("status", claim, func() (err error) {
		for _, m := range all {
			stored := s.byID(m.ID)
			if stored == nil || stored.Version != m.Version {
				err = domain.ErrChanged
				continue
			}
			next := stored.NextAt
			if next.Equal(m.LoadedNextAt) {
				next = m.NextAt
			}
			stored.Request, stored.Status, stored.Reason = m.Request, m.Status, m.Reason
			stored.Conditions, stored.Drift = slices.Clone(m.Conditions), slices.Clone(m.Drift)
			stored.ObservedRevision, stored.NextAt = m.ObservedRevision, next
		}
		return err
	})
}

func (s storeView) Remove(_ context.Context, claim domain.Claim, m domain.Managed) error {
	return s.save("remove", claim, func() error {
		stored := s.byID(m.ID)
		if stored == nil || stored.Version != m.Version || stored.Request != domain.ManagedDelete {
			return domain.ErrChanged
		}
		s.resources = slices.DeleteFunc(s.resources, func(one *domain.Managed) bool { return one.ID == m.ID })
		maps.DeleteFunc(s.members, func(_ uuid.UUID, member domain.Member) bool { return member.ManagedID == m.ID })
		return nil
	})
}

func (s storeView) Now(context.Context) (time.Time, error) {
	if s.run.dead() {
		return time.Time{}, context.Canceled
	}
	return time.Now(), nil
}

func (storeView) ForgetUnexpected(
	context.Context, domain.Claim, string, []domain.UnexpectedObject, []string, time.Duration,
) error {
	return nil
}

func (storeView) SaveUnexpected(
	context.Context, domain.Claim, string, []domain.UnexpectedObject, time.Duration,
) ([]string, error) {
	return nil, nil
}
