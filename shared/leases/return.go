package leases

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// ending is the end of a reservation of hosts: no one can launch on them any more, then the servers go as on_end says.
// Each host is the pool's again as soon as none of them is left on it, whatever the others do: a step that fails for
// one host or server is repeated by the next pass, and keeps no other.
type ending struct {
	hostStep

	aggregate  domain.Aggregate // the reservation's; ID 0 = it does not exist
	hosts      []endingHost     // which no server gets onto any more
	unplaced   []domain.Server  // the reservation's that are on no host
	isBuilding bool             // servers may be on their way to any of the hosts
	isDone     bool             // no step has left anything to do
	failure    error            // of the first step that failed
}

// endingHost is a host of a reservation that ends, and the reservation's servers on it.
type endingHost struct {
	name string
	own  []domain.Server
}

// finish returns the hosts.
func (s hostStep) finish(ctx context.Context) (err error) {
	for _, f := range s.r.Flavors {
		if err := s.cloud.DeleteFlavor(ctx, f.ID); err != nil {
			return err
		}
	}
	e := &ending{hostStep: s, isDone: true}
	if e.aggregate, _, err = s.cloud.FindAggregate(ctx, AggregateName(s.r.ID)); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		e.readHosts, e.lock, e.deleteUnplaced, e.returnHosts, e.endMoved,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	switch {
	case e.failure != nil:
		return e.failure
	case !e.isDone:
		s.isMoving = true
		return nil
	}
	if e.aggregate.ID != 0 {
		if err := s.cloud.DeleteAggregate(ctx, e.aggregate.ID); err != nil {
			return err
		}
	}
	if err := s.cloud.DeleteTrait(ctx, s.r.Trait); err != nil {
		return err
	}
	s.r.Status, s.r.AggregateID = domain.ReservationEnded, 0
	return nil
}

// failed keeps the error of a host or a server for the next pass. It returns an error that ends this one.
func (e *ending) failed(ctx context.Context, err error) error {
	if domain.IsSuperseded(err) || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err != nil {
		e.isDone = false
	}
	if e.failure == nil {
		e.failure = err
	}
	return nil
}

// readHosts returns the hosts to the pool's aggregate and reads the reservation's servers on them. Other servers are
// not its to end: their host is not reservable until they have left it.
func (e *ending) readHosts(ctx context.Context) error {
	var pooled []string
	for _, name := range e.heldHosts(e.aggregate) {
		err := e.returnToPool(ctx, []string{name})
		if err == nil {
			pooled = append(pooled, name)
		}
		if err := e.failed(ctx, err); err != nil {
			return err
		}
	}
	building, unplaced, err := e.unplacedServers(ctx) // first: then they are on a host, if anywhere
	if err != nil {
		return err
	}
	// No unshelving that began after the hosts were isolated leads to one of them.
	e.unplaced, e.isBuilding = unplaced, building > 0 && !e.isLate(max(e.EndFor, longestBuild))
	for _, name := range pooled {
		own, others, err := e.residents(ctx, name)
		if err == nil {
			err = e.makeUnreservable(ctx, name, CheckServers(name, others))
		}
		if err == nil {
			e.hosts = append(e.hosts, endingHost{name, own})
		}
		if err := e.failed(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// deleteUnplaced deletes the servers without a host that on_end deletes.
func (e *ending) deleteUnplaced(ctx context.Context) error {
	for _, found := range e.unplaced {
		if !e.deletes(found) {
			continue
		}
		e.isDone = false
		err := absentIsDone(e.cloud.DeleteServer(ctx, found.ID))
		if err != nil {
			err = e.notEnded(ctx, found, err)
		}
		if err := e.failed(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// returnHosts does on_end to the servers on each host, and returns those that are empty.
func (e *ending) returnHosts(ctx context.Context) error {
	for _, host := range e.hosts {
		isEmpty, err := e.endServers(ctx, host)
		if isEmpty = isEmpty && !e.isBuilding; err == nil && isEmpty {
			err = e.release(ctx, e.aggregate, host.name)
		}
		e.isDone = e.isDone && isEmpty
		if err := e.failed(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// endMoved shelves the servers that have left the hosts on the way, and unlocks those that are shelved.
func (e *ending) endMoved(ctx context.Context) error {
	isShelved, err := e.shelveMoved(ctx)
	if err == nil {
		e.isDone = e.isDone && isShelved
		err = e.unlock(ctx)
	}
	return e.failed(ctx, err)
}

// returnToPool puts hosts into the pool's aggregate, too. From then on no server gets onto them, and what is read of
// them stays true.
func (s hostStep) returnToPool(ctx context.Context, names []string) error {
	trait, err := s.Nodes.PoolTrait(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := isolate(ctx, s.cloud, PoolAggregate, trait, s.node(name))
		if err != nil && apperr.CodeOf(err) != apperr.NotFound { // a host that has left the cloud takes no servers
			return err
		}
	}
	return nil
}

// heldHosts are the hosts that are or may be the reservation's: those of its aggregate, and those that it has prepared.
func (s hostStep) heldHosts(aggregate domain.Aggregate) []string {
	names := slices.Clone(aggregate.Hosts)
	for _, a := range s.r.Allocations {
		if isHeld(a) {
			names = append(names, a.Node)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// release takes hosts out of the aggregate, if that exists, and the trait off their providers. They are the pool's
// already.
func (s hostStep) release(ctx context.Context, aggregate domain.Aggregate, names ...string) error {
	for _, name := range names {
		provider := s.nodes[name].ProviderID
		if aggregate.ID != 0 {
			if err := s.cloud.RemoveHost(ctx, aggregate, name, provider); err != nil {
				return err
			}
		}
		if err := s.cloud.SetProviderTrait(ctx, provider, s.r.Trait, false); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	return s.Store.Released(ctx, s.claim, *s.r, names...)
}

// residents lists the servers of the reservation on a host, and counts the others.
func (s hostStep) residents(ctx context.Context, name string) (own []domain.Server, others int, err error) {
	servers, err := s.cloud.HostServers(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	for _, server := range servers {
		isOwn, err := s.isOwn(ctx, server)
		switch {
		case err != nil:
			return nil, 0, err
		case isOwn:
			own = append(own, server)
		default:
			others++
		}
	}
	return own, others, nil
}

// isOwn reports whether a server on a host of the reservation is the reservation's. An image with the reservation's
// trait brings servers there, too. So those that the project has made since the lease began are the reservation's, if
// it was proven before they came that no others get there.
func (s hostStep) isOwn(ctx context.Context, server domain.Server) (bool, error) {
	_, isPrivate := s.base(server)
	began := s.lease.StartsAt.Truncate(time.Second) // as exact as Nova's times
	switch {
	case server.ProjectID != s.lease.ProjectID:
		return false, nil
	case isPrivate:
		return true, nil
	case server.CreatedAt.Before(began) || s.IsIsolated == nil:
		return false, nil
	}
	return s.IsIsolated(ctx, server.CreatedAt)
}

func (s hostStep) others(ctx context.Context, name string) (int, error) {
	_, others, err := s.residents(ctx, name)
	return others, err
}

// longestBuild is after the build of any server, and after its unshelving. One that Nova has lost on the way keeps no
// host for longer.
const longestBuild = time.Hour

// unplacedServers counts the servers of the reservation that are being built or unshelved, which may be on their way to
// any of its hosts, and lists the others without a host: those that no host took, and those that their user has
// shelved.
func (s hostStep) unplacedServers(ctx context.Context) (building int, others []domain.Server, err error) {
	servers, err := s.cloud.UnplacedServers(ctx, s.lease.ProjectID)
	for _, server := range servers {
		_, isPrivate := s.base(server)
		began, isBuilding := server.CreatedAt, server.Status == "BUILD"
		if server.Status == "SHELVED_OFFLOADED" && server.Task != "" {
			began, isBuilding = server.UpdatedAt, true // when its unshelving began, or later
		}
		switch {
		case !isPrivate:
		case isBuilding && s.now.Sub(began) < longestBuild:
			building++
		case server.Host == "":
			others = append(others, server)
		}
	}
	return building, others, err
}

// deletes reports whether on_end deletes a server without a host. No image can be made of it: one with data stays.
func (s hostStep) deletes(server domain.Server) bool {
	return s.lease.OnEnd == domain.OnEndDelete || s.lease.OnEnd == domain.OnEndSnapshotDelete && !server.Launched
}

// endServers does what on_end says to the reservation's servers on a host. isEmpty reports that none is left, or that
// they stay there: then the host is not reservable until they have left it, as when their end takes too long.
func (s hostStep) endServers(ctx context.Context, host endingHost) (isEmpty bool, err error) {
	isStaying := s.lease.OnEnd == domain.OnEndNone
	if len(host.own) == 0 || isStaying {
		return true, s.makeUnreservable(ctx, host.name, CheckServers(host.name, len(host.own)))
	}
	if s.isLate(s.EndFor) && s.nodes[host.name].Pool == domain.NodeReservable {
		if err := s.makeUnreservable(ctx, host.name, CheckServers(host.name, len(host.own))); err != nil {
			return false, err
		}
	}
	for _, server := range host.own {
		s.left = append(s.left, described(server))
	}
	node, known := s.nodes[host.name]
	if known && !node.IsUp && s.lease.OnEnd != domain.OnEndDelete { // Nova deletes them in any case
		words := "a reserved host is down, and " + strconv.Itoa(len(host.own)) +
			" of the reservation's servers are on it: they end when it is up"
		return false, public(apperr.New(apperr.Conflict, "%s", words), words)
	}
	var failed error
	for _, found := range host.own {
		switch err := s.endServer(ctx, found.ID); {
		case domain.IsSuperseded(err):
			return false, err
		case err != nil:
			failed = s.notEnded(ctx, found, err)
		default:
			s.isMoving = true
		}
	}
	return false, failed
}

// notEnded is the error about a server of the reservation that could not be ended yet. Nova's words to an admin are for
// the log.
func (s hostStep) notEnded(ctx context.Context, server domain.Server, cause error) error {
	slog.WarnContext(ctx, "server could not be ended", "lease_id", s.lease.ID, "server_id", server.ID, "error", cause)
	words := described(server) + " cannot be ended yet"
	return public(apperr.Wrap(apperr.CodeOf(cause), cause, "%s", words), words)
}

// endServer does the next step of on_end to a server of the reservation.
func (s hostStep) endServer(ctx context.Context, id string) error {
	server, err := s.cloud.Server(ctx, id)
	if err != nil {
		return absentIsDone(err)
	}
	switch {
	case server.Task == "deleting", server.Status == "DELETED", server.Status == "SOFT_DELETED":
		return nil
	case s.lease.OnEnd == domain.OnEndDelete:
		return absentIsDone(s.cloud.DeleteServer(ctx, id))
	case s.deletes(server) && server.Status == "ERROR":
		const did = "it was in ERROR and had never run: it was deleted without an image"
		if err := s.saveRemark(ctx, server, did); err != nil {
			return err
		}
		return absentIsDone(s.cloud.DeleteServer(ctx, id))
	case s.lease.OnEnd != domain.OnEndSnapshotDelete:
		return s.shelve(ctx, server)
	}
	if isReady, err := s.prepareEnd(ctx, server); !isReady || err != nil {
		return err
	}
	isDone, err := s.act(ctx, server, domain.Snapshot)
	if isDone {
		err = absentIsDone(s.cloud.DeleteServer(ctx, id))
	}
	return err
}

// absentIsDone drops the error about a server that is deleted.
func absentIsDone(err error) error {
	if apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}

// act does the next step of an action with the service account.
func (s hostStep) act(ctx context.Context, server domain.Server, action domain.Action) (isDone bool, err error) {
	progress, err := actions.Engine{Instances: s.Instances}.Step(ctx, s.cloud, actions.Action{
		ActionRequest: domain.ActionRequest{Action: action}, ServerID: server.ID, Lease: s.lease.ID,
		Follow: &actions.Follow{RequestedAt: s.now, Now: s.now},
	})
	if progress.Waits != nil {
		s.reason = domain.ProblemOf(progress.Waits)
	}
	return progress.Done, err
}

// shelve shelves a server of the reservation. Its flavor fits reserved hosts only, and a shelved server keeps its
// flavor, so no one could unshelve it. So it is stopped and resized to the flavor's base first, which moves it to an
// ordinary host. A tag marks it, because nothing else tells then that it was the reservation's.
func (s hostStep) shelve(ctx context.Context, server domain.Server) error {
	base, isPrivate := s.base(server)
	isReady, err := s.prepareEnd(ctx, server)
	switch {
	case !isReady || err != nil || server.Task != "":
		return err
	case isPrivate && server.Status == "ACTIVE":
		return s.cloud.StopServer(ctx, server.ID)
	case isPrivate && server.Status == "SHUTOFF":
		isMoving, err := s.move(ctx, server, base)
		if isMoving || err != nil {
			return err
		}
	}
	_, err = s.act(ctx, server, domain.Shelve)
	return err
}

// base is the flavor that the server's private one is a copy of. isPrivate reports whether it has one of the
// reservation.
func (s hostStep) base(server domain.Server) (id string, isPrivate bool) {
	for _, f := range s.r.Flavors {
		if f.Name == server.Flavor.Name {
			return f.BaseID, true
		}
	}
	return "", false
}

// move begins to resize a stopped server to the base of its flavor. isMoving is false when Nova cannot do that, such as
// without room on the other hosts, or when the base is deleted: then the server is shelved as it is.
func (s hostStep) move(ctx context.Context, server domain.Server, base string) (isMoving bool, err error) {
	tag := AggregateName(s.r.ID)
	if slices.Contains(server.Tags, tag) {
		mayMove, err := s.mayMove(ctx, server.ID)
		switch {
		case err != nil:
			return false, err
		case !mayMove:
			return false, s.saveRemark(ctx, server, keepsFlavor)
		}
	} else if err = s.cloud.TagServer(ctx, server.ID, tag); err != nil {
		return false, err
	}
	err = s.cloud.ResizeServer(ctx, server.ID, base)
	switch apperr.CodeOf(err) {
	case apperr.Invalid, apperr.NotFound, apperr.Forbidden, apperr.Conflict:
		slog.WarnContext(ctx, "server keeps the flavor of its reservation", "lease_id", s.lease.ID,
			"reservation_id", s.r.ID, "server_id", server.ID, "error", err)
		return false, s.saveRemark(ctx, server, keepsFlavor)
	}
	return true, err
}

const keepsFlavor = "Nova could not move it off the reserved host: it keeps the lease's flavor, and cannot be unshelved"

// mayMove reports whether Nova has not failed to resize the server yet.
func (s hostStep) mayMove(ctx context.Context, id string) (bool, error) {
	log, err := s.cloud.Actions(ctx, id)
	hasFailed := slices.ContainsFunc(log, func(a domain.LoggedAction) bool { return a.Name == "resize" && a.Failed })
	return !hasFailed, err
}

// shelveMoved shelves the servers that have left the reservation's hosts on the way. isDone reports that none is left.
func (s hostStep) shelveMoved(ctx context.Context) (isDone bool, err error) {
	if s.lease.OnEnd != domain.OnEndShelve {
		return true, nil
	}
	servers, err := s.cloud.TaggedServers(ctx, s.lease.ProjectID, AggregateName(s.r.ID))
	if err != nil {
		return false, err
	}
	isDone = true
	for _, server := range servers {
		// Nova gives a server its new host first, and then its new flavor: meanwhile it has a task. Without a task it
		// is on a host of the reservation that is down.
		_, isPrivate := s.base(server)
		if isPrivate && server.Task == "" || server.Status == "SHELVED_OFFLOADED" || server.Partial {
			continue
		}
		if err := s.shelve(ctx, server); err != nil {
			return false, s.notEnded(ctx, server, err)
		}
		isDone = false
	}
	s.isMoving = s.isMoving || !isDone
	return isDone, nil
}
