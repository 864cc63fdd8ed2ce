// Package nodes watches the hosts of compute and drains them: what is read of hosts, when one is cordoned or drained
// automatically, and how each server of a drain is moved. Each step may be repeated, so that a process that dies
// between any two calls loses nothing.
package nodes

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// DrainCloud is what draining hosts takes.
type DrainCloud interface {
	ComputeService(ctx context.Context, host string) (domain.ComputeHost, error)
	HostServers(ctx context.Context, host string) ([]domain.Server, error)
	Server(ctx context.Context, id string) (domain.Server, error)
	LiveMigrate(ctx context.Context, id string) error
	ColdMigrate(ctx context.Context, id string) error
	ConfirmMigration(ctx context.Context, id string) error
	LastMigration(ctx context.Context, id, host string) (domain.Migration, bool, error)
	MigrationFault(ctx context.Context, id string) (string, error)
}

// Drains stores drains. Every write carries the claim.
type Drains interface {
	SetServers(ctx context.Context, claim domain.Claim, drain domain.Drain, servers ...domain.DrainServer) error
	// StartServer is SetServers of one server that Nova is about to move: not for a cancelled drain.
	StartServer(
		ctx context.Context, claim domain.Claim, drain domain.Drain, server domain.DrainServer,
	) (started bool, err error)
	Save(ctx context.Context, claim domain.Claim, drain *domain.Drain, claimFor time.Duration) error
}

// Engine drains hosts.
type Engine struct {
	Drains Drains
	// Node reads what is known of a host.
	Node func(ctx context.Context, name string) (domain.Node, error)
	// Cloud opens a session of the service account; nil = no account.
	Cloud  func(context.Context) (DrainCloud, error)
	Forget func(error) // drops the session after an error that is due to its token
	Wake   func(functions ...string)
	// For drains whose admin has not said it.
	Parallel      int
	ServerTimeout time.Duration
}

// ErrNoAccount says why nothing is watched and drained.
var ErrNoAccount = apperr.New(apperr.Unavailable,
	"watch-nodes has no service account: set NODES_OS_CLOUD, or where it runs alone OS_USERNAME and OS_PASSWORD")

const (
	passTime = 40 * time.Second // bounds the work of a pass
	// ClaimFor is how long a replica that has died keeps its drains.
	ClaimFor = 45 * time.Second
	// passPause is between two passes of a drain, waitPause when it only waits for others.
	passPause = 1500 * time.Millisecond
	waitPause = 5 * time.Second
	maxPause  = 5 * time.Minute // after errors of the cloud
	// settleTime is how long after its start a drain reads the host at least once more: a server that was scheduled
	// before the cordon may land later.
	settleTime = 15 * time.Second
	// MaxAttempts is how often a move of a server is requested from Nova; the pause after an attempt that failed is
	// retryPause times the attempts.
	MaxAttempts = 3
	retryPause  = 5 * time.Second
	lookups     = 8 // of servers at a time
)

// pass is one visit of a claimed drain.
type pass struct {
	Engine

	claim domain.Claim
	drain *domain.Drain
	now   time.Time // at its begin, by the database's clock
	began time.Time // the same by the clock of this process
	cloud DrainCloud
	here  map[string]domain.Server // the servers on the host
	host  domain.ComputeHost

	parallel int           // how many servers move at a time
	timeout  time.Duration // of one server
}

// Run does for a claimed drain what can be done now, writes it back and releases its claim.
func (e Engine) Run(ctx context.Context, claim domain.Claim, drain domain.Drain, now time.Time) error {
	p := &pass{
		Engine: e, claim: claim, drain: &drain, now: now, began: time.Now(),
		parallel: cmp.Or(drain.Parallel, e.Parallel), timeout: cmp.Or(drain.ServerTimeout, e.ServerTimeout),
	}
	return due.Pass{Limit: passTime, Work: p.run, Save: p.end}.Run(ctx)
}

// time is the time by the database's clock.
func (p *pass) time() time.Time { return p.now.Add(time.Since(p.began)) }

func (p *pass) run(ctx context.Context) error {
	if p.Cloud == nil {
		return ErrNoAccount
	}
	var err error
	if p.cloud, err = p.Cloud(ctx); err != nil {
		return err
	}
	if err := p.readHost(ctx); err != nil {
		return err
	}
	err = p.follow(ctx) // a server that cannot be followed keeps no other from moving
	if errors.Is(err, domain.ErrFenced) || p.drain.Status != domain.DrainRunning || !p.host.IsUp {
		return err
	}
	return errors.Join(err, p.move(ctx))
}

// readHost reads the host and its servers, stores new ones, and ends a drain that may not go on.
func (p *pass) readHost(ctx context.Context) (err error) {
	p.host, err = p.cloud.ComputeService(ctx, p.drain.Node)
	if apperr.CodeOf(err) == apperr.NotFound {
		p.fail("Nova has no such host any more")
		err = nil
	}
	if err != nil {
		return err
	}
	if p.host.CellDown { // Nova would list no servers
		return apperr.New(apperr.Unavailable, "the host's cell does not answer")
	}
	if p.drain.Status == domain.DrainRunning {
		if err := p.check(ctx); err != nil {
			return err
		}
	}
	found, err := p.cloud.HostServers(ctx, p.drain.Node)
	if err != nil {
		return err
	}
	p.here = make(map[string]domain.Server, len(found))
	for _, s := range found {
		p.here[s.ID] = s
	}
	if p.drain.Status != domain.DrainRunning {
		return nil
	}
	return p.add(ctx, found)
}

// check reports whether the drain may go on. A host that is down is never emptied by migration: what runs there may run
// still.
func (p *pass) check(ctx context.Context) error {
	if p.host.IsEnabled {
		p.fail("the host is not cordoned any more")
		return nil
	}
	if p.host.IsUp {
		p.drain.Reason = ""
		return nil
	}
	p.drain.Reason = "Nova says that the host is down"
	node, err := p.Node(ctx, p.drain.Node)
	if err == nil && node.Status == domain.NodeDown {
		p.fail("the host is down, and such a host is not drained")
	}
	return err
}

// fail ends the drain. What Nova was requested to move is still followed.
func (p *pass) fail(reason string) {
	if p.drain.Status == domain.DrainRunning {
		p.drain.Status, p.drain.Reason = domain.DrainFailed, reason
	}
}

// add stores the servers that the drain does not know yet, and those that have come back.
func (p *pass) add(ctx context.Context, found []domain.Server) error {
	known := make(map[string]int, len(p.drain.Servers))
	for n, s := range p.drain.Servers {
		known[s.ServerID] = n
	}
	var fresh []domain.DrainServer
	for _, s := range found {
		one := domain.DrainServer{ServerID: s.ID, Name: s.Name, ProjectID: s.ProjectID, Status: domain.DrainPending}
		if n, isKnown := known[s.ID]; !isKnown {
			p.drain.Servers = append(p.drain.Servers, one)
		} else if p.drain.Servers[n].Status == domain.DrainMoved {
			p.drain.Servers[n] = one
		} else {
			continue
		}
		fresh = append(fresh, one)
	}
	if len(fresh) == 0 {
		return nil
	}
	return p.Drains.SetServers(ctx, p.claim, *p.drain, fresh...)
}

// each does a step for some of the servers, several at a time, and stores those that it changes. It returns the errors
// of all: one that fails ends no call for another.
func (p *pass) each(
	ctx context.Context, which func(domain.DrainServer) bool, step func(context.Context, *domain.DrainServer) error,
) error {
	errs := make([]error, len(p.drain.Servers))
	var all errgroup.Group
	all.SetLimit(lookups)
	for n := range p.drain.Servers {
		s := &p.drain.Servers[n]
		if !which(*s) {
			continue
		}
		all.Go(func() error {
			before := *s
			if errs[n] = step(ctx, s); *s == before || errors.Is(errs[n], domain.ErrFenced) {
				return nil
			}
			slog.InfoContext(ctx, "drain server status changed", "node", p.drain.Node, "server_id", s.ServerID,
				"status", s.Status, "method", s.Method, "reason", s.Reason)
			errs[n] = errors.Join(errs[n], p.save(ctx, s))
			return nil
		})
	}
	_ = all.Wait() // the errors are in errs
	return errors.Join(errs...)
}

func (p *pass) save(ctx context.Context, s *domain.DrainServer) error {
	return p.Drains.SetServers(ctx, p.claim, domain.Drain{ID: p.drain.ID, Node: p.drain.Node}, *s)
}

// end stores how far the drain is, and when there is work again.
func (p *pass) end(ctx context.Context, failure error) error {
	d := p.drain
	_, left, _ := d.Counts()
	settled := d.CreatedAt.Add(settleTime)
	switch {
	case d.Status != domain.DrainRunning && inFlight(d.Servers) == 0:
		d.DueAt = time.Time{}
	case failure != nil:
		d.Attempts++
		d.DueAt = p.time().Add(flow.Backoff(waitPause, maxPause, d.Attempts))
		if d.Status == domain.DrainRunning {
			d.Reason = apperr.As(failure).Message
		}
		slog.WarnContext(ctx, "drain pass failed", "node", d.Node, "error", failure)
		if p.Forget != nil {
			p.Forget(failure)
		}
	case inFlight(d.Servers) > 0:
		d.Attempts, d.DueAt = 0, p.time().Add(passPause)
	case left == 0 && p.now.Before(settled):
		d.Attempts, d.DueAt = 0, settled
	case left == 0:
		d.Status, d.DueAt = domain.DrainDone, time.Time{}
	default:
		d.Attempts, d.DueAt = 0, p.time().Add(waitPause)
	}
	if err := p.Drains.Save(ctx, p.claim, d, 0); err != nil {
		return err
	}
	if d.DueAt.IsZero() {
		moved, left, skipped := d.Counts()
		slog.InfoContext(ctx, "drain ended", "node", d.Node, "status", d.Status, "reason", d.Reason,
			"moved", moved, "left", left, "skipped", skipped)
		p.Wake("deliver-events")
	}
	return nil
}

// inFlight counts the servers that Nova was requested to move.
func inFlight(servers []domain.DrainServer) (n int) {
	for _, s := range servers {
		if isInFlight(s) {
			n++
		}
	}
	return n
}

func isInFlight(s domain.DrainServer) bool {
	return s.Status == domain.DrainMigrating || s.Status == domain.DrainConfirming
}

// What Plan answers besides domain.LiveMigration and domain.ColdMigration.
const (
	Wait = "wait" // Nova is at work on the server, and takes no other action
	Skip = "skip" // the server stays
)

// Plan says how a drain moves a server of a host: domain.LiveMigration, domain.ColdMigration, Wait or Skip. The last
// two come with a reason. A locked server moves too: Nova lets its admins migrate it.
func Plan(s domain.Server) (method, reason string) {
	switch {
	case s.Partial:
		return Wait, "its cell is down"
	case s.Task != "":
		return Wait, "Nova is at work on it: " + s.Task
	}
	switch s.Status {
	case "ACTIVE", "PAUSED":
		return domain.LiveMigration, ""
	case "SHUTOFF":
		return domain.ColdMigration, ""
	case "BUILD", "MIGRATING", "RESIZE", "REVERT_RESIZE", "REBUILD", "REBOOT", "HARD_REBOOT", "PASSWORD":
		return Wait, "Nova is at work on it: " + s.Status
	}
	return Skip, stays(s)
}

// stays says why a server cannot be moved, and what would help.
func stays(s domain.Server) string {
	switch s.Status {
	case "ERROR":
		return "it is in ERROR: Nova does not move it until its state is reset or it is deleted"
	case "VERIFY_RESIZE":
		return "its resize waits for its owner to confirm or revert it"
	case "SUSPENDED":
		return "it is SUSPENDED: Nova moves it only after it is resumed"
	case "RESCUE":
		return "it is in RESCUE: Nova moves it only after it is unrescued"
	case "SHELVED":
		return "it is SHELVED and not offloaded: an admin may offload it"
	case "SHELVED_OFFLOADED":
		return "it is SHELVED_OFFLOADED: it is on no host"
	case "DELETED", "SOFT_DELETED":
		return "it is deleted"
	}
	return "Nova does not move a server in " + s.Status
}

// Whether other hosts have room for a server.
const (
	RoomYes     = "yes"
	RoomNo      = "no"
	RoomUnknown = "unknown" // Nova or Placement does not give the sizes
)

type sizes struct{ vcpus, ramMB, diskGB int }

func (s sizes) fits(free sizes) bool {
	return s.vcpus <= free.vcpus && s.ramMB <= free.ramMB && s.diskGB <= free.diskGB
}

// need is what a server takes of its host. One that boots from a volume takes no disk.
func need(s domain.Server) sizes {
	n := sizes{s.Flavor.VCPUs, s.Flavor.RAMMB, s.Flavor.DiskGB}
	if s.Image == nil {
		n.diskGB = 0
	}
	return n
}

// Room places the servers that a drain would move on the hosts, the largest first and each on the first host that it
// fits, and returns by id whether there is room. Nova's scheduler may choose otherwise, and has other rules besides.
func Room(servers []domain.Server, hosts []domain.ComputeHost) map[string]string {
	room, free, isComplete := map[string]string{}, []sizes{}, true
	for _, h := range hosts {
		if h.ProviderID == "" {
			isComplete = false
			continue
		}
		free = append(free, sizes{h.VCPUs - h.UsedVCPUs, h.RAMMB - h.UsedRAMMB, h.DiskGB - h.UsedDiskGB})
	}
	servers = slices.DeleteFunc(slices.Clone(servers), func(s domain.Server) bool {
		method, _ := Plan(s)
		return method == Skip
	})
	slices.SortFunc(servers, func(a, b domain.Server) int {
		return cmp.Or(need(b).ramMB-need(a).ramMB, need(b).vcpus-need(a).vcpus, cmp.Compare(a.ID, b.ID))
	})
	for _, s := range servers {
		n := need(s)
		at := slices.IndexFunc(free, n.fits)
		switch {
		case n.vcpus == 0:
			room[s.ID] = RoomUnknown
		case at >= 0:
			room[s.ID] = RoomYes
			free[at] = sizes{free[at].vcpus - n.vcpus, free[at].ramMB - n.ramMB, free[at].diskGB - n.diskGB}
		case isComplete:
			room[s.ID] = RoomNo
		default:
			room[s.ID] = RoomUnknown
		}
	}
	return room
}
