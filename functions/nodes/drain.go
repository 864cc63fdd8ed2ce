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

// drainRequest is what a drain is asked to be. Zero values leave it to watch-nodes.
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
func (s service) Drain(
	ctx context.Context, who domain.Identity, token domain.Secret, name string, in drainRequest,
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
	if err != nil || found.isDraining() && !in.isDryRun {
		return found, err
	}
	if err := checkDrain(found, all, in.isForced); err != nil {
		return found, err
	}
	if in.isDryRun {
		return s.plan(ctx, cloud, found, all)
	}
	if found, err = s.cordon(ctx, cloud, found, "drained by "+who.UserName); err != nil {
		return found, err
	}
	drain, _, err := s.drains.Create(ctx, domain.Drain{
		ID: uuid.Must(uuid.NewV7()), Node: name, RequestedBy: who.UserID, Actor: domain.ActorOf(who, uuid.Nil),
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
	var others []domain.ComputeHost
	for _, n := range all {
		if n.Name != found.Name && n.IsUp && n.IsEnabled && n.Zone == found.Zone &&
			(n.stored.Pool == "") == (found.stored.Pool == "") {
			others = append(others, n.ComputeHost)
		}
	}
	if len(servers) > 0 {
		if err := cloud.HostInventories(ctx, others); err != nil {
			return found, err
		}
	}
	found.room = nodes.Room(servers, others)
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
func (s service) CancelDrain(
	ctx context.Context, who domain.Identity, token domain.Secret, name string,
) (node, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	found, err := s.get(ctx, cloud, name)
	if err == nil {
		err = cloud.MayChangeServices(ctx)
	}
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
