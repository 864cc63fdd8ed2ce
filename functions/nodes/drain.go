package nodes

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/nodes"
)

// The values of cordoned_by.
const (
	byUs     = "cloudfn"
	byOthers = "other"
)

// cordonedBy says who has disabled the host: Nova keeps the reason.
func (n node) cordonedBy() string {
	switch {
	case !n.isThere || n.IsEnabled:
		return ""
	case strings.HasPrefix(n.DisabledReason, domain.CordonMark):
		return byUs
	}
	return byOthers
}

// isDraining reports whether a drain moves servers off the host.
func (n node) isDraining() bool { return n.drain != nil && n.drain.Status == domain.DrainRunning }

// shows reports whether a drain is still news of the host: it is not over, or has left the host cordoned.
func (n node) shows(d domain.Drain) bool {
	return !d.DueAt.IsZero() || !n.IsEnabled && !d.CreatedAt.Before(n.stored.CordonedAt)
}

// others are the hosts that take new servers in the place of one.
func others(found node, all []node) []domain.ComputeHost {
	hosts, pooled := make([]domain.ComputeHost, len(all)), map[string]bool{}
	for i, n := range all {
		hosts[i], pooled[n.Name] = n.ComputeHost, n.stored.Pool != ""
	}
	return domain.Substitutes(found.Name, hosts, pooled)
}

// checkLast keeps the last host of a zone and pool that takes servers from being cordoned without force.
func checkLast(found node, all []node, isForced bool) error {
	if isForced || len(others(found, all)) > 0 {
		return nil
	}
	kind := "ordinary" // on reservable hosts only servers of reservations land
	if found.stored.Pool != "" {
		kind = "reservable"
	}
	return apperr.New(apperr.Conflict, "no other %s host of zone %s is up and enabled to take servers in the place of "+
		"node %s: repeat it with force", kind, found.Zone, found.Name)
}

// maxReason is how much of a reason Nova stores.
const maxReason = 255

// Cordon keeps new servers off a host, with the caller's token. One that cloudfn has cordoned stays as it is, and one
// that another admin has disabled stays theirs.
func (s service) Cordon(ctx context.Context, cloud session, name, reason string, isForced bool) (node, error) {
	found, all, err := s.get(ctx, cloud, name, cloud.MayChangeServices)
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
	by := "cordoned by " + cloud.who.UserName
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

// Uncordon opens a host that cloudfn has cordoned. One that another admin has disabled stays theirs.
func (s service) Uncordon(ctx context.Context, cloud session, name string) (node, error) {
	found, _, err := s.get(ctx, cloud, name, cloud.MayChangeServices)
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

// drainRequest is what a request for a drain says. Zero values leave it to watch-nodes.
type drainRequest struct {
	parallel      int
	serverTimeout time.Duration
	isForced      bool // also the last host that takes servers
	isDryRun      bool
}

// planned is the status of a drain that a dry run shows.
const planned domain.DrainStatus = "planned"

// Drain cordons a host with the caller's token, and lets watch-nodes move its servers. While a drain runs, it stays as
// it is. A dry run only says how each server would move.
func (s service) Drain(ctx context.Context, cloud session, name string, in drainRequest) (node, error) {
	found, all, err := s.get(ctx, cloud, name, cloud.MayChangeServices)
	if err != nil || found.isDraining() && !in.isDryRun {
		return found, err
	}
	if err := checkDrain(found, all, in.isForced); err != nil {
		return found, err
	}
	if in.isDryRun {
		return s.plan(ctx, cloud, found, all)
	}
	if found, err = s.cordon(ctx, cloud, found, "drained by "+cloud.who.UserName); err != nil {
		return found, err
	}
	drain, _, err := s.drains.Create(ctx, domain.Drain{
		ID: uuid.Must(uuid.NewV7()), Node: name, RequestedBy: cloud.who.UserID,
		Actor:    domain.ActorOf(cloud.who, uuid.Nil),
		Parallel: in.parallel, ServerTimeout: in.serverTimeout,
	})
	if err == nil {
		found.drain = &drain
		s.wake("watch-nodes", "deliver-events")
	}
	return found, err
}

// checkDrain says why a host cannot be drained.
func checkDrain(found node, all []node, isForced bool) error {
	switch {
	case !found.isThere:
		return apperr.New(apperr.Conflict, "Nova has no host %s any more", found.Name)
	case found.CellDown:
		return apperr.New(apperr.Conflict, "the cell of node %s does not answer: its servers cannot be moved",
			found.Name)
	case !found.IsUp || found.status() == domain.NodeDown:
		status, reason := found.judge()
		return apperr.New(apperr.Conflict, "node %s is %s (%s): servers cannot be moved off it, and are not evacuated",
			found.Name, status, reason)
	case found.drain != nil && !found.isDraining() && !found.drain.DueAt.IsZero(): // before the host is cordoned
		return apperr.New(apperr.Conflict, "the last drain of node %s is %s, and still follows servers that move",
			found.Name, found.drain.Status)
	}
	return checkLast(found, all, isForced)
}

// plan shows how a drain would move the servers of a host, and whether the others of its zone and pool have room.
func (s service) plan(ctx context.Context, cloud session, found node, all []node) (node, error) {
	servers, err := cloud.HostServers(ctx, found.Name)
	if err != nil {
		return found, err
	}
	targets := others(found, all)
	if len(servers) > 0 {
		if err := cloud.HostInventories(ctx, targets); err != nil {
			return found, err
		}
	}
	found.room = nodes.Room(servers, targets)
	slices.SortFunc(servers, func(a, b domain.Server) int { return strings.Compare(a.Name+"/"+a.ID, b.Name+"/"+b.ID) })
	drain := &domain.Drain{Status: planned}
	for _, v := range servers {
		one := domain.DrainServer{ServerID: v.ID, Name: v.Name, ProjectID: v.ProjectID, Status: domain.DrainPending}
		switch method, reason := nodes.Plan(v); method {
		case nodes.Skip:
			one.Status, one.Reason = domain.DrainSkipped, reason
		case nodes.Wait:
			one.Reason = reason
		default:
			one.Method = method
		}
		drain.Servers = append(drain.Servers, one)
	}
	found.drain = drain
	return found, nil
}

// CancelDrain stops a drain. Servers that Nova moves already are followed to their end; the host stays cordoned.
func (s service) CancelDrain(ctx context.Context, cloud session, name string) (node, error) {
	found, _, err := s.get(ctx, cloud, name, cloud.MayChangeServices)
	if err != nil {
		return found, err
	}
	isCancelled, err := s.drains.Cancel(ctx, name)
	if err != nil || !isCancelled {
		return found, err
	}
	s.wake("watch-nodes")
	last, err := s.drains.Last(ctx, name)
	if d, ok := last[name]; ok {
		found.drain = &d
	}
	return found, err
}
