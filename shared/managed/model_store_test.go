package managed

import (
	"bytes"
	"cmp"
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
	dooms     func(domain.Member, *modelRun)
	isWoken   bool // something was declared or reported since that
	resources []*domain.Managed
	revisions map[uuid.UUID]map[int]domain.Revision
	pruned    map[uuid.UUID]map[int]bool // revisions that only the rules of the model still know
	members   map[uuid.UUID]domain.Member
	orders    map[uuid.UUID]*modelOrder
	orphans   map[uuid.UUID]bool // resources, and their members, whose declaration was deleted alone
}

type modelOrder struct {
	domain.Order

	claim   uuid.UUID
	claimed time.Time // until then
}

func newModelStore() *modelStore {
	return &modelStore{
		project:   domain.ManagedProject{ProjectID: "p", DueAt: time.Now(), ScanAt: time.Now()},
		revisions: map[uuid.UUID]map[int]domain.Revision{}, pruned: map[uuid.UUID]map[int]bool{},
		members: map[uuid.UUID]domain.Member{}, orders: map[uuid.UUID]*modelOrder{},
		orphans: map[uuid.UUID]bool{},
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

// declared are the resources as they are declared.
func (s *modelStore) declared() (all []domain.Managed) {
	for _, m := range s.resources {
		all = append(all, *m)
	}
	return all
}

// declare stores a declaration as postgres.Managed.Declare does. The store is locked.
func (s *modelStore) declare(in domain.Managed) {
	now, m := time.Now(), s.find(in.Kind, in.Name)
	if m == nil {
		in.ID, in.ProjectID, in.UserID = uuid.MustParse(idOf(in.Kind, in.Name, len(s.revisions))), "p", "u"
		in.CreatedAt = now
		in.Request, in.Status = domain.ManagedCreate, domain.ManagedPending
		m = &in
		s.resources = append(s.resources, m)
		s.revisions[m.ID], s.pruned[m.ID] = map[int]domain.Revision{}, map[int]bool{}
		s.revise(m)
	} else {
		isSame := bytes.Equal(m.Spec, in.Spec) && bytes.Equal(m.Digest, in.Digest) &&
			reflect.DeepEqual(m.Schedule, in.Schedule)
		hasFailed := m.Request == "" && (m.Status == domain.ManagedDegraded || m.Status == domain.ManagedError)
		switch {
		case !isSame:
			m.Spec, m.Digest, m.Secrets, m.Schedule, m.Repair = in.Spec, in.Digest, in.Secrets, in.Schedule, in.Repair
			m.Request, m.Status, m.Reason = domain.ManagedUpdate, domain.ManagedUpdating, ""
			if m.ObservedRevision == 0 {
				m.Request, m.Status = domain.ManagedCreate, domain.ManagedPending
			}
			s.revise(m)
		case m.Repair != in.Repair:
			m.Repair = in.Repair
			m.Version++
		case hasFailed:
			m.Request = domain.ManagedUpdate
		}
		m.Declarations++
		s.retry(m.ID)
	}
	m.MaxRevisions = 1
	s.prune(m, s.claim != uuid.Nil)
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

// prune deletes the revisions that a resource is not to keep, but none that a pass may have loaded and record.
func (s *modelStore) prune(m *domain.Managed, isClaimed bool) {
	for number := range s.revisions[m.ID] {
		next := s.revisions[m.ID][number+1]
		isKept := isClaimed && time.Since(next.CreatedAt) < 10*time.Minute
		for _, member := range s.members {
			isKept = isKept || member.ManagedID == m.ID && member.Revision <= number
		}
		if number <= m.Revision-m.MaxRevisions && !isKept {
			s.pruned[m.ID][number] = true
		}
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

// delete stores that a resource is to be deleted. The store is locked.
func (s *modelStore) delete(m *domain.Managed, orphan bool) {
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
	return s.write(what, saveFaults, func() error {
		if claim.ID != s.claim {
			return domain.ErrFenced
		}
		return do()
	})
}

// write writes something. It fails in one of the ways.
func (s storeView) write(what string, ways []string, do func() error) error {
	how := s.run.fault("db", what, ways)
	if s.run.dead() {
		return context.Canceled
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch how {
	case "crash before":
		return s.run.die()
	case "503":
		return apperr.New(apperr.Unavailable, "postgres is unavailable")
	case "fenced":
		s.claim = uuid.New()
	}
	err := do()
	switch how {
	case "crash after":
		return s.run.die()
	case "lost":
		return apperr.New(apperr.Unavailable, "postgres is unavailable")
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
			if r.Number != m.Revision && r.Number == m.ObservedRevision && !s.pruned[m.ID][r.Number] {
				m.Made[r.Number] = r
			}
		}
		for _, member := range s.members {
			if member.ManagedID != m.ID {
				continue
			}
			member.Declarations = m.Declarations
			m.Members = append(m.Members, member)
			for number, r := range s.revisions[m.ID] {
				if number >= member.Revision && number != m.Revision && !s.pruned[m.ID][number] {
					m.Made[number] = r
				}
			}
		}
		slices.SortFunc(m.Members, func(a, b domain.Member) int {
			return cmp.Or(a.Ordinal-b.Ordinal, compareIDs(a.ID, b.ID))
		})
		all = append(all, m)
		s.run.loaded[m.ID] = m
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
		s.dooms(m, s.run)
	}
	return s.save("member "+string(m.Status)+" "+s.labelOf(m), claim, func() error {
		of := s.byID(m.ManagedID)
		if of == nil || s.pruned[of.ID][m.Revision] {
			return domain.ErrChanged
		}
		if m.Declarations != of.Declarations { // what it has counted is of an earlier declaration
			m.Attempts, m.RetryAt, m.Writes = 0, time.Time{}, 0
		}
		m.Declarations = 0
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

// labelOf is the name of a member's object. Calls beside each other are distinguished by it.
func (s storeView) labelOf(m domain.Member) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.byID(m.ManagedID); of != nil {
		return of.NameOf(m)
	}
	return ""
}

func (s storeView) member(id uuid.UUID) domain.Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members[id]
}

func (s storeView) DeleteMember(_ context.Context, claim domain.Claim, _ string, id uuid.UUID) error {
	return s.save("forget "+s.labelOf(s.member(id)), claim, func() error {
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
			if stored.ObservedRevision == stored.Revision {
				s.prune(stored, false)
			}
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
		s.orphans[m.ID] = stored.Orphan
		maps.DeleteFunc(s.members, func(id uuid.UUID, member domain.Member) bool {
			if member.ManagedID == m.ID && stored.Orphan {
				s.orphans[id] = true
			}
			return member.ManagedID == m.ID
		})
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
