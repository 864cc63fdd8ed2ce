package managed

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// save stores the status of the resources that have changed, and removes those that are deleted. A pass that has found
// nothing new writes nothing.
func (p *pass) save(ctx context.Context) error {
	var changed []*domain.Managed
	isServerReady := false // another one, whose addresses poll-instances reads
	finishing, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	for _, m := range p.resources {
		if !m.isSelected {
			continue
		}
		if m.isGone() {
			p.isNews = true
			if err := p.remove(ctx, finishing, m); err != nil && !errors.Is(err, domain.ErrChanged) {
				return err
			}
			continue
		}
		before := m.Managed
		before.Conditions = slices.Clone(m.Conditions)
		m.assess(p.now, p.nodes)
		m.schedule(p.now)
		if !m.isSame(before) {
			changed = append(changed, &m.Managed)
			isServerReady = isServerReady ||
				m.Kind.IsServer() && m.Status == domain.ManagedReady && before.Status != domain.ManagedReady
			p.isNews = p.isNews || m.Status != before.Status || m.ObservedRevision != before.ObservedRevision
		}
	}
	if len(changed) > 0 {
		// What was declared again meanwhile stays: the project is due immediately.
		if err := p.Store.SaveStatus(ctx, p.claim, changed...); err != nil && !errors.Is(err, domain.ErrChanged) {
			return err
		}
	}
	if p.isNews {
		p.Wake("deliver-events")
	}
	if isServerReady {
		p.Wake("poll-instances")
	}
	return nil
}

// schedule sets when the resource is due again. One that is not settled stays due, and the pause of the project
// is the pause between its passes.
func (m *resource) schedule(now time.Time) {
	isKnown := m.unknown == nil
	switch {
	case !isKnown && m.NextAt.IsZero(): // the next scan shows it
	case !isKnown, m.plan.isMoving, m.isDeleting(), m.waits != "", len(m.waiting)+len(m.failures) > 0:
		if m.NextAt.IsZero() || m.NextAt.After(now) {
			m.NextAt = now
		}
	default:
		m.NextAt = m.plan.retryAt
	}
}

// isGone reports whether nothing is left of a resource that is being deleted.
func (m *resource) isGone() bool {
	return m.isDeleting() && m.plan.isGone && (m.unknown == nil || m.Orphan) && len(m.failures) == 0
}

// remove deletes a resource whose objects are all deleted, or stay.
func (p *pass) remove(ctx, finishing context.Context, m *resource) error {
	if finisher, ok := m.driver.(Finisher); ok && !m.Orphan {
		if err := finisher.Finish(finishing, m.session, m.Managed); err != nil {
			p.problem = err
			return nil //nolint:nilerr // the next pass does it again
		}
	}
	return p.Store.Remove(ctx, p.claim, m.Managed)
}

// isSame reports whether the pass has changed nothing of the resource.
func (m *resource) isSame(before domain.Managed) bool {
	return m.Status == before.Status && m.Reason == before.Reason && m.Request == before.Request &&
		m.ObservedRevision == before.ObservedRevision && m.NextAt.Equal(before.NextAt) &&
		isSameText(m.Conditions, before.Conditions) && isSameText(m.Drift, before.Drift)
}

// isSameText reports whether two lists are written alike. None is stored as an empty list.
func isSameText[T any](a, b []T) bool {
	if len(a) != len(b) || len(a) == 0 {
		return len(a) == len(b)
	}
	text, err := json.Marshal(a)
	before, beforeErr := json.Marshal(b)
	return err == nil && beforeErr == nil && bytes.Equal(text, before)
}

// assess sets the status, the conditions and the drift of a resource.
func (m *resource) assess(now time.Time, nodes []domain.Node) {
	set := func(kind string, isTrue bool, reason, message string) {
		status := "False"
		if isTrue {
			status = "True"
		}
		c := domain.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedRevision: m.Revision,
		}
		m.Conditions = domain.SetCondition(m.Conditions, c, now)
	}
	if m.unknown != nil {
		m.assessUnknown(now, set)
		return
	}
	set(domain.ConditionDelegated, true, "TrustAccepted", "")
	t := m.target()
	isCurrent := m.plan.updated == t.count && m.plan.current == t.count && len(m.members) <= t.count &&
		len(m.plan.refused) == 0
	if isCurrent && !m.isDeleting() {
		m.ObservedRevision, m.Request = m.Revision, ""
	}
	m.Drift = m.plan.drift
	var reason string
	m.Status, reason, m.Reason = m.find(t, isCurrent)
	set(domain.ConditionReady, m.Status == domain.ManagedReady, reason, m.Reason)
	switch {
	case isCurrent && len(m.plan.following) > 0:
		set(domain.ConditionUpdated, false, "Following", fmt.Sprintf(
			"revision %d; other resources have changed, and are followed in %s", m.Revision,
			strings.Join(m.plan.following, ", ")))
	case isCurrent && m.plan.old > 0:
		set(domain.ConditionUpdated, true, "EarlierFiles", fmt.Sprintf(
			"revision %d; %s: a change reaches new servers only, or all with update: replace", m.Revision, m.old(t)))
	case isCurrent:
		set(domain.ConditionUpdated, true, "AsDeclared", fmt.Sprintf("revision %d", m.Revision))
	case len(m.plan.refused) > 0:
		set(domain.ConditionUpdated, false, "ReplaceRequired", refusal(m.plan.refused))
	default:
		set(domain.ConditionUpdated, false, "Progressing", m.progress(t))
	}
	if len(m.Drift) == 0 {
		set(domain.ConditionInSync, true, "AsDeclared", "")
	} else {
		set(domain.ConditionInSync, false, "Drifted", "others have changed "+driftedFields(m.Drift))
	}
	if m.Kind.IsServer() {
		isMet, reason, message := m.scheduled(nodes)
		set(domain.ConditionScheduled, isMet, reason, message)
	}
	m.assessProgress(isCurrent, set)
}

// assessProgress sets whether work on a resource goes on, and whether OpenStack's does.
func (m *resource) assessProgress(isCurrent bool, set func(kind string, isTrue bool, reason, message string)) {
	switch {
	case m.plan.isUnchanged:
		set(domain.ConditionProgressing, false, "NoProgress",
			"nothing is tried any more, until it is declared again: "+first(m.plan.problems))
	case len(m.plan.stuck) > 0:
		set(domain.ConditionProgressing, false, "Stuck", first(m.plan.stuck))
	case m.plan.isStalled:
		set(domain.ConditionProgressing, false, "ReplacementsFailed", fmt.Sprintf(
			"the update has stopped after %d failures: roll back, or declare it again; %s", mostFailures,
			first(m.plan.problems)))
	case isCurrent:
		set(domain.ConditionProgressing, true, "AsDeclared", "")
	default:
		set(domain.ConditionProgressing, true, "Progressing", "")
	}
}

// assessUnknown sets what can be said of a resource whose objects are not known.
func (m *resource) assessUnknown(now time.Time, set func(kind string, isTrue bool, reason, message string)) {
	message := apperr.As(m.unknown).Message
	if apperr.CodeOf(m.unknown) == apperr.DelegationLost {
		set(domain.ConditionDelegated, false, "DelegationLost", message)
		set(domain.ConditionReady, false, "DelegationLost", message)
		m.Reason = message
		if !m.isDeleting() {
			m.Status = domain.ManagedError
		}
		return
	}
	m.Conditions = domain.SetCondition(m.Conditions, domain.Condition{
		Type: domain.ConditionReady, Status: "Unknown", Reason: "NotObserved", Message: message,
		ObservedRevision: m.Revision,
	}, now)
}

// find returns the status, with its reason in CamelCase: the first that holds.
func (m *resource) find(t target, isCurrent bool) (status domain.ManagedStatus, reason, message string) {
	moving := domain.ManagedUpdating
	if m.ObservedRevision == 0 {
		moving = domain.ManagedCreating
	}
	problems := first(append(m.failures, m.plan.problems...))
	if problems == "" && m.plan.isPausing {
		problems = m.Reason // it was stored when the creation failed
	}
	waits := m.waits
	if waits == "" {
		waits = first(append(m.waiting, m.plan.waits...))
	}
	switch {
	case m.isDeleting():
		if problems == "" {
			problems = cmp.Or(first(m.plan.slow), waits)
		}
		return domain.ManagedDeleting, "Deleting", problems
	case problems != "" && m.plan.available > 0 && t.isDeployment:
		return domain.ManagedDegraded, "MemberFailed", problems
	case problems != "":
		return domain.ManagedError, "Failed", problems
	case waits != "" && m.ObservedRevision == 0:
		return domain.ManagedPending, "Waiting", waits
	case waits != "":
		return moving, "Waiting", waits
	case len(m.plan.refused) > 0:
		return domain.ManagedError, "ReplaceRequired", refusal(m.plan.refused)
	case !isCurrent:
		return moving, "Progressing", m.progress(t)
	case len(m.plan.drift) > 0:
		return domain.ManagedDegraded, "Drifted", "others have changed " + driftedFields(m.plan.drift)
	case len(m.plan.stopped) > 0:
		return domain.ManagedDegraded, "NotWorking", first(m.plan.stopped)
	}
	return domain.ManagedReady, "AsDeclared", ""
}

// progress says how far a revision has come, and what does not work: a deployment waits for that.
func (m *resource) progress(t target) string {
	text := []string{
		fmt.Sprintf("%d of %d have revision %d", m.plan.updated, t.count, m.Revision), m.old(t), first(m.plan.stopped),
		first(m.plan.slow),
	}
	return strings.Join(slices.DeleteFunc(text, func(one string) bool { return one == "" }), "; ")
}

// old says how many servers have earlier files of their configmaps.
func (m *resource) old(t target) string {
	if m.plan.old == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d have earlier files of their configmaps", m.plan.old, t.count)
}

// first is the alphabetically first text, so that the same problems give the same status each time.
func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return slices.Min(all)
}

func refusal(refused []Difference) string {
	texts := map[string]bool{}
	for _, one := range refused {
		why := one.Why
		if why == "" {
			why = "it cannot be changed in place"
		}
		texts[one.Field+": "+why] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(texts)), "; ")
}

func driftedFields(drift []domain.Drift) string {
	fields := map[string]bool{}
	for _, one := range drift {
		fields[one.Field] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
}
