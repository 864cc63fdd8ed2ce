package managed

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// step takes the steps of all resources, those of each service and region beside the others: one that hangs keeps no
// other one waiting. It fails when nothing can be stored any more.
func (p *pass) step(ctx context.Context) error {
	services := map[listing][]*resource{}
	for _, m := range p.resources {
		key := listing{m.driver, m.Schedule.Region}
		services[key] = append(services[key], m)
	}
	all, working := errgroup.WithContext(ctx)
	for _, resources := range services {
		all.Go(func() error { return p.stepService(working, resources) })
	}
	return all.Wait()
}

// stepService takes the steps of the resources of one service, some at a time. A step that fails, or whose resource or
// revision was deleted meanwhile, does not keep the others. Nor does a check that hangs.
func (p *pass) stepService(ctx context.Context, resources []*resource) error {
	group, working := errgroup.WithContext(ctx)
	group.SetLimit(parallelSteps)
	begin := func(take func() error) {
		group.Go(func() error {
			if err := take(); !errors.Is(err, domain.ErrChanged) {
				return err
			}
			return nil
		})
	}
	beginAll := func(m *resource) {
		for _, s := range m.plan.steps {
			begin(func() error { return p.take(working, m, s) })
		}
		for _, s := range m.members {
			if m.isOrphaned() {
				break
			}
			for _, extra := range s.object.Extra {
				begin(func() error { return p.deleteExtra(working, m, s.member.ID, extra) })
			}
		}
	}
	var checking sync.WaitGroup
	var others []*resource
	for _, m := range resources {
		if !m.replaces() {
			others = append(others, m)
			continue
		}
		checking.Go(func() {
			p.checkReplacement(working, m)
			beginAll(m)
		})
	}
	for _, m := range others {
		beginAll(m)
	}
	checking.Wait()
	return group.Wait()
}

// replaces reports whether objects that work are deleted before what replaces them is made.
func (m *resource) replaces() bool {
	return slices.ContainsFunc(m.plan.steps, func(s step) bool { return s.isReplaced })
}

// checkReplacement checks that what replaces objects could be made, before they are deleted. Else it keeps them.
func (p *pass) checkReplacement(ctx context.Context, m *resource) {
	checker, ok := m.driver.(Checker)
	if !ok {
		return
	}
	n := slices.IndexFunc(m.plan.steps, func(s step) bool { return s.isReplaced })
	secrets, err := p.secrets(m.Managed)
	if err == nil {
		err = p.check(ctx, checker, m, m.plan.steps[n].member, secrets)
	}
	if isUnknown(err) { // it is not known whether it could
		err = Waits("NotChecked", "it is not replaced yet: %s", apperr.As(p.explain(m, err)).Message)
	}
	if err == nil {
		return
	}
	kept := map[int]bool{} // the ordinals of what is not replaced now
	for n, s := range m.plan.steps {
		if !s.isReplaced {
			continue
		}
		kept[s.member.Ordinal] = true
		s.action, s.member = actRecord, *m.own(s.member.ID)
		p.fail(ctx, m, &s.member, s, because(err, "it is not replaced, because no other one can be made"))
		m.plan.steps[n] = s
	}
	m.plan.steps = slices.DeleteFunc(m.plan.steps, func(s step) bool {
		return s.action == actCreate && kept[s.member.Ordinal]
	})
}

// check checks whether the object of a member could be made again. The server group that this may make can appear after
// nothing waits for the response any more. So the member counts as requested from before the call on, and its resource
// is not deleted until that time has ended.
func (p *pass) check(
	ctx context.Context, checker Checker, m *resource, member domain.Member, secrets domain.ManagedSecrets,
) error {
	own := m.own(member.ID)
	wasRequested := own.IsRequested
	if m.Schedule.Affinity != "" && !wasRequested {
		own.IsRequested = true
		if err := p.saveMember(ctx, *own); err != nil {
			return err
		}
	}
	calling, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	in := p.desired(m, member)
	in.Secrets = secrets
	err := checker.Check(calling, m.session, in)
	if err == nil || isWait(err) || apperr.Rejected(err) {
		own.IsRequested = wasRequested
	}
	return err
}

// own is a member as it is stored.
func (m *resource) own(id uuid.UUID) *domain.Member {
	n := slices.IndexFunc(m.members, func(s observed) bool { return s.member.ID == id })
	return &m.members[n].member
}

// take takes one step, and stores what came of it. What is stored of a member does not end with the time of the step.
func (p *pass) take(ctx context.Context, m *resource, s step) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if s.action != actRecord {
		slog.InfoContext(ctx, "reconcile step", "project_id", p.project.ProjectID, "kind", m.Kind,
			"name", m.Name, "member_id", s.member.ID, "step", s.action, "object_id", s.object.ID)
	}
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	switch s.action {
	case actRecord:
		return p.saveMember(ctx, s.member)
	case actForget:
		return p.Store.DeleteMember(ctx, p.claim, p.project.ProjectID, s.member.ID)
	case actCreate:
		return p.create(ctx, m, s)
	case actUpdate:
		return p.update(ctx, m, s)
	}
	return p.delete(ctx, m, s)
}

// saveMember stores a member, also when the pass has ended: what has happened must not be lost.
func (p *pass) saveMember(ctx context.Context, member domain.Member) error {
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	return p.Store.SaveMember(writing, p.claim, p.project.ProjectID, member)
}

// create stores the member, and makes its object. A process that dies in between leaves a member without an object: the
// next pass calls Create again, which looks for the mark first. What may have been requested is what the member's own
// revision declares; else it is what is declared now. As in all steps, the call counts as one that OpenStack accepted
// when it has answered: a process that dies before the call has made none.
func (p *pass) create(ctx context.Context, m *resource, s step) error {
	member := s.member
	isCounted := s.object.ID != "" // it completes an object
	if isCounted {
		member.ObjectID = s.object.ID
		member.Writes--
	}
	in := p.desired(m, member) // as it is before the call
	switch {
	case member.ObjectID != "": // it is incomplete
	case member.IsRequested:
		in = in.asMade()
	default:
		member.Revision = m.Revision
		in = p.desired(m, member)
	}
	member.Status, member.Reason, member.RetryAt = domain.MemberCreating, "", time.Time{}
	// An earlier call may have made the server, with what was declared then.
	earlier := member.UserData
	member.UserData = cmp.Or(earlier, in.userData())
	member.IsRequested, member.IsWaiting = true, false
	if member.ObjectID == "" {
		member.CreateCalls++
	}
	if err := p.saveMember(ctx, member); err != nil {
		return err
	}
	id, err := p.callCreate(ctx, m, in, &member)
	if err == nil {
		if member.ObjectID = id; isCounted {
			member.Writes++
		}
		if id != "" { // all calls have been answered, unless one before this one was not
			member.IsRequested = in.Member.IsRequested
		}
		return p.saveMember(ctx, member)
	}
	isUnsent := errors.Is(err, errUnsent)
	switch err = p.record(ctx, m, &member, s, err); {
	case isWait(err):
		isUnsent = true
	case apperr.Final(err):
		member.Status, member.Reason = domain.MemberError, apperr.As(err).Message
		isUnsent = isUnsent || id == "" // OpenStack has rejected it
	}
	if isUnsent {
		member.IsRequested, member.UserData = in.Member.IsRequested, earlier // of an earlier call
		member.CreateCalls = in.Member.CreateCalls
	}
	return p.saveMember(ctx, member)
}

// callCreate makes the object of a member. What it is made with is stored before a call that may make it.
func (p *pass) callCreate(ctx context.Context, m *resource, in Desired, member *domain.Member) (id string, err error) {
	isThere := false
	if in.Secrets, err = p.secrets(in.Resource); err != nil {
		return "", unsent(err)
	}
	in.isThere = &isThere
	in.Sending = func(ctx context.Context) error { // no earlier call has made the server
		if member.UserData == in.userData() {
			return nil
		}
		member.UserData = in.userData()
		return p.saveMember(ctx, *member)
	}
	id, err = m.driver.Create(ctx, m.session, in)
	if isThere {
		member.CreateCalls = in.Member.CreateCalls
	}
	return id, err
}

// update takes one step to what is declared.
func (p *pass) update(ctx context.Context, m *resource, s step) error {
	member := s.member
	member.Writes--
	member.ObjectID = s.object.ID // of a new one: it is found by it from now on
	member.Status, member.Reason, member.IsWaiting = domain.MemberCreating, changing(s.differences), false
	if member.WasReady {
		member.Status = domain.MemberUpdating
	}
	earlier, wasRebuilt := member.UserData, member.IsRebuilt
	if rebuilds(s.differences) {
		member.UserData, member.IsRebuilt = cmp.Or(p.desired(m, member).userData(), earlier), true
	}
	if err := p.saveMember(ctx, member); err != nil { // that it is another replica's project shows here
		return err
	}
	secrets, err := p.secrets(m.Managed)
	if err == nil {
		in := p.desired(m, member)
		in.Secrets = secrets
		err = m.driver.Update(ctx, m.session, in, s.object, s.differences)
	} else {
		err = unsent(err)
	}
	switch {
	case err == nil:
		member.Writes++
	case errors.Is(err, ErrNothingLeft):
		member, wasRebuilt = ready(member, m.Revision, Object{ID: member.ObjectID}), false
	default:
		p.fail(ctx, m, &member, s, err)
	}
	if isWait(err) || errors.Is(err, errUnsent) || errors.Is(err, ErrNothingLeft) || apperr.Rejected(err) {
		member.UserData, member.IsRebuilt = earlier, wasRebuilt // the server keeps it
	}
	return p.saveMember(ctx, member)
}

// fail remembers in a member why a step that changes or replaces its object failed.
func (p *pass) fail(ctx context.Context, m *resource, member *domain.Member, s step, err error) {
	if err = p.record(ctx, m, member, s, err); isWait(err) {
		return
	}
	member.Reason = apperr.As(err).Message
	if apperr.Final(err) && apperr.CodeOf(err) != apperr.Conflict { // a lock, or another's action, ends
		member.Status = domain.MemberError
	}
}

// delete stores that the member is being deleted, and deletes its object.
func (p *pass) delete(ctx context.Context, m *resource, s step) error {
	member := s.member
	if s.object.ID != "" {
		member.ObjectID = s.object.ID
	}
	member.Status = domain.MemberDeleting
	member.Writes--
	if err := p.saveMember(ctx, member); err != nil || s.object.ID == "" {
		return err
	}
	if err := m.driver.Delete(ctx, m.session, s.object); err != nil {
		_ = p.record(ctx, m, &member, s, err)
	} else {
		member.Writes++
	}
	return p.saveMember(ctx, member)
}

// deleteExtra deletes an object that was made because the answer to the call that made another one was late. It writes
// nothing of its member, whose own step may be running.
func (p *pass) deleteExtra(ctx context.Context, m *resource, member uuid.UUID, extra Object) error {
	if extra.State == ObjectDeleting {
		return nil
	}
	if err := p.Store.HoldsProject(ctx, p.claim, p.project.ProjectID); err != nil { // another replica may know better
		return err
	}
	slog.WarnContext(ctx, "deleting an object that was made twice", "project_id", p.project.ProjectID, "kind", m.Kind,
		"name", m.Name, "member_id", member, "object_id", extra.ID)
	calling, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	if err := m.driver.Delete(calling, m.session, extra); err != nil {
		_ = p.record(ctx, m, &domain.Member{ID: member}, step{action: actDelete, object: extra}, err)
	}
	return nil
}

// record remembers why a step failed, and when it is repeated. It returns the error with what a user can do about it.
func (p *pass) record(ctx context.Context, m *resource, member *domain.Member, s step, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := (WaitError{}); errors.As(err, &w) {
		m.waiting = append(m.waiting, w.Message)
		member.RetryAt = p.time().Add(pauseOfWait(s.member, w.Message))
		member.Reason, member.IsWaiting = w.Message, true // by the same reason its pauses grow
		return err
	}
	slog.WarnContext(ctx, "reconcile step failed", "project_id", p.project.ProjectID, "kind", m.Kind,
		"name", m.Name, "member_id", member.ID, "step", s.action, "error", err)
	err = p.explain(m, err)
	m.failures = append(m.failures, apperr.As(err).Message)
	member.Attempts++
	member.RetryAt, member.IsWaiting = p.time().Add(pauseAfter(member.Attempts)), false
	return err
}

// pauseOfWait is the pause before a step that waits is tried again: it doubles while a member waits for the same.
func pauseOfWait(m domain.Member, reason string) time.Duration {
	if m.Reason != reason || m.RetryAt.IsZero() {
		return shortestPause
	}
	return min(max(2*m.RetryAt.Sub(m.UpdatedAt), shortestPause), driftPause)
}

// secrets decrypts the secrets of a resource.
func (p *pass) secrets(m domain.Managed) (domain.ManagedSecrets, error) {
	if len(m.Secrets) == 0 {
		return domain.ManagedSecrets{}, nil
	}
	out, err := p.Unseal(m)
	if err != nil {
		return out, apperr.Wrap(apperr.Internal, err, "the secrets of the resource cannot be decrypted")
	}
	return out, nil
}
