package nodes

import (
	"context"
	"slices"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// maxReason is how much of a reason Nova stores.
const maxReason = 255

// Cordon keeps new servers off a host, with the caller's token. One that cloudfn has cordoned stays as it is, and one
// that somebody else has disabled stays theirs.
func (s service) Cordon(
	ctx context.Context, who domain.Identity, token domain.Secret, name, reason string, isForced bool,
) (node, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	all, err := s.all(ctx, cloud)
	if err != nil {
		return node{}, err
	}
	found, err := s.find(ctx, cloud, slices.Clone(all), name)
	if err == nil {
		err = cloud.MayChangeServices(ctx)
	}
	if err == nil && found.IsEnabled {
		err = checkLast(found, all, isForced)
	}
	if err != nil {
		return found, err
	}
	if found.cordonedBy() == byOthers {
		return found, apperr.New(apperr.Conflict, "node %s was not disabled by cloudfn, but with the reason %q", name,
			found.DisabledReason)
	}
	by := "cordoned by " + who.UserName
	if reason != "" {
		by += ": " + reason
	}
	return s.cordon(ctx, cloud, found, by)
}

// cordon disables the host's nova-compute, unless it is disabled already, and records it. When the record fails,
// watch-nodes finds the reason in Nova.
func (s service) cordon(ctx context.Context, cloud session, found node, reason string) (node, error) {
	if !found.isThere {
		return found, apperr.New(apperr.Conflict, "Nova has no host %s any more", found.Name)
	}
	if found.IsEnabled {
		text := []rune(domain.CordonMark + reason)
		reason := string(text[:min(len(text), maxReason)])
		if err := cloud.DisableService(ctx, found.ServiceID, reason); err != nil {
			return found, err
		}
		found.IsEnabled, found.DisabledReason = false, reason
	}
	if found.cordonedBy() != byUs {
		return found, nil
	}
	var err error
	found.stored, err = s.nodes.SetCordoned(ctx, found.Name, true, found.DisabledReason)
	s.wake("deliver-events")
	return found, err
}

// Uncordon opens a host that cloudfn has cordoned. One that somebody else has disabled stays theirs.
func (s service) Uncordon(ctx context.Context, who domain.Identity, token domain.Secret, name string) (node, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	found, err := s.get(ctx, cloud, name)
	if err == nil {
		err = cloud.MayChangeServices(ctx)
	}
	switch {
	case err != nil:
		return found, err
	case !found.isThere:
		return found, apperr.New(apperr.Conflict, "Nova has no host %s any more", name)
	case found.isDraining():
		return found, apperr.New(apperr.Conflict, "node %s is drained: cancel that first", name)
	case found.cordonedBy() == byOthers:
		return found, apperr.New(apperr.Conflict, "node %s was not disabled by cloudfn, but with the reason %q: "+
			"who did so enables it", name, found.DisabledReason)
	}
	if found.IsEnabled && found.stored.CordonedAt.IsZero() {
		return found, nil
	}
	if !found.IsEnabled {
		if err := cloud.EnableService(ctx, found.ServiceID); err != nil {
			return found, err
		}
		found.IsEnabled, found.DisabledReason = true, ""
	}
	found.stored, err = s.nodes.SetCordoned(ctx, name, false, "")
	if found.drain != nil && !found.shows(*found.drain) {
		found.drain = nil
	}
	s.wake("deliver-events")
	return found, err
}
