package nodes

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// session has the caller's own token: Nova's policy decides who sees hosts, who may disable them, and who may make them
// reservable. It replaces the words in which the policy forbids a call.
type session struct {
	*openstack.Session

	who domain.Identity
}

// ComputeHosts replaces the session's.
func (s session) ComputeHosts(ctx context.Context) ([]domain.ComputeHost, error) {
	hosts, err := s.Session.ComputeHosts(ctx)
	return hosts, nodes.ForAdmins(err, "nodes are for the cloud's admins")
}

const changesAreForAdmins = "changes of nodes are for the cloud's admins"

// MayChangeServices replaces the session's.
func (s session) MayChangeServices(ctx context.Context) error {
	return nodes.ForAdmins(s.Session.MayChangeServices(ctx), changesAreForAdmins)
}

// MayChangeAggregates replaces the session's.
func (s session) MayChangeAggregates(ctx context.Context) error {
	return nodes.ForAdmins(s.Session.MayChangeAggregates(ctx), changesAreForAdmins)
}

type service struct {
	nodes      postgres.Nodes
	drains     postgres.Drains
	isolations postgres.Isolations
	leases     postgres.Leases
	cloud      *openstack.Cloud
	statusURLs *webhook.Guard // which of them may be
	wake       func(functions ...string)
}

// List returns the hosts after the marker, by name, without Placement's part and drains.
func (s service) List(ctx context.Context, cloud session, f filter, marker string) ([]node, error) {
	all, err := s.all(ctx, cloud)
	return slices.DeleteFunc(all, func(n node) bool { return n.Name <= marker || !f.matches(n) }), err
}

// all are the hosts that Nova has, and those that are stored besides, without Placement's part and drains.
func (s service) all(ctx context.Context, cloud session) ([]node, error) {
	hosts, err := cloud.ComputeHosts(ctx) // first: it is Nova that says who may see them
	if err != nil {
		return nil, err
	}
	stored, err := s.nodes.All(ctx)
	if err != nil {
		return nil, err
	}
	isolation, err := s.isolations.Get(ctx, s.cloud.Region())
	if err != nil {
		return nil, err
	}
	byName := map[string]domain.Node{}
	for _, n := range stored {
		byName[n.Name] = n
	}
	out := make([]node, 0, len(hosts))
	for _, h := range hosts {
		if before := byName[h.Name]; h.CellDown {
			h.Zone, h.IsUp, h.IsEnabled, h.ServiceID = before.Zone, before.IsUp, before.Enabled, before.ServiceID
			h.DisabledReason, h.SeenAt = before.DisabledReason, before.ServiceAt
		}
		out = append(out, node{
			ComputeHost: h, region: s.cloud.Region(), isThere: true, stored: byName[h.Name], isolation: isolation,
		})
		delete(byName, h.Name)
	}
	for _, n := range byName {
		host := domain.ComputeHost{Name: n.Name, Zone: n.Zone}
		out = append(out, node{ComputeHost: host, region: n.Region, stored: n, isolation: isolation})
	}
	slices.SortFunc(out, func(a, b node) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// fill reads from Placement what the hosts have, and what is used of it, and reads their drains and next leases.
func (s service) fill(ctx context.Context, cloud session, nodes []node) error {
	if len(nodes) == 0 {
		return nil
	}
	hosts, names := make([]domain.ComputeHost, len(nodes)), make([]string, len(nodes))
	for n := range nodes {
		hosts[n], names[n] = nodes[n].ComputeHost, nodes[n].Name
	}
	if err := cloud.HostInventories(ctx, hosts); err != nil {
		return err
	}
	next, err := s.leases.NextOf(ctx, names...)
	if err != nil {
		return err
	}
	drains, err := s.drains.Last(ctx, names...)
	for n := range nodes {
		nodes[n].ComputeHost = hosts[n]
		if a, ok := next[nodes[n].Name]; ok {
			nodes[n].lease = &a
		}
		if d, ok := drains[nodes[n].Name]; ok && nodes[n].shows(d) {
			nodes[n].drain = &d
		}
	}
	return err
}

// get returns a host, and all of them. mayChange are the session's checks of a change that the caller is about to make.
func (s service) get(
	ctx context.Context, cloud session, name string, mayChange ...func(context.Context) error,
) (found node, all []node, err error) {
	if all, err = s.all(ctx, cloud); err != nil {
		return found, nil, err
	}
	n := slices.IndexFunc(all, func(n node) bool { return n.Name == name })
	if n < 0 {
		return found, nil, apperr.New(apperr.NotFound, "the cloud has no host of compute %.64q", name)
	}
	one := []node{all[n]}
	err = s.fill(ctx, cloud, one)
	for _, check := range mayChange {
		if err == nil {
			err = check(ctx)
		}
	}
	return one[0], all, err
}

// Servers returns the servers on a host after the marker, of all projects, by their ids.
func (s service) Servers(ctx context.Context, cloud session, name, marker string) ([]domain.Server, error) {
	if _, _, err := s.get(ctx, cloud, name); err != nil {
		return nil, err
	}
	all, err := cloud.HostServers(ctx, name)
	slices.SortFunc(all, func(a, b domain.Server) int { return strings.Compare(a.ID, b.ID) })
	return slices.DeleteFunc(all, func(v domain.Server) bool { return v.ID <= marker }), err
}

// Join makes a host reservable. run-leases does so in Nova and Placement, and checks once more that it has no servers.
func (s service) Join(ctx context.Context, cloud session, name string) (node, error) {
	found, _, err := s.get(ctx, cloud, name, cloud.MayChangeAggregates)
	if err != nil || found.stored.Pool == domain.NodeJoining || found.stored.Pool == domain.NodeReservable {
		return found, err
	}
	if found.ProviderID == "" {
		return found, apperr.New(apperr.Conflict, "host %s has no hypervisor, or several: only hosts with one can be "+
			"reserved", name)
	}
	if err = leases.CheckServers(name, found.Servers); err == nil {
		err = leases.CheckIsolation(ctx, cloud, name)
	}
	if err != nil {
		return found, err
	}
	found.stored, err = s.nodes.Join(ctx, domain.Node{
		Name: name, Region: s.cloud.Region(), Zone: found.Zone, IsUp: found.IsUp && found.IsEnabled,
		ProviderID: found.ProviderID, VCPUs: found.VCPUs, RAMMB: found.RAMMB, DiskGB: found.DiskGB,
		Traits: found.Traits, Attributes: found.Attributes, RequestedBy: cloud.who.UserID,
	})
	if err == nil {
		s.wake("run-leases")
	}
	return found, err
}

// Leave makes a host an ordinary one again. It is a Conflict while reservations have it, now or later.
func (s service) Leave(ctx context.Context, cloud session, name string) (node, error) {
	found, _, err := s.get(ctx, cloud, name, cloud.MayChangeAggregates)
	if err != nil || found.stored.Pool == "" {
		return found, err
	}
	left, err := s.nodes.Leave(ctx, name, cloud.who.UserID)
	if apperr.CodeOf(err) == apperr.NotFound { // it has left meanwhile
		found.stored.Pool = ""
		return found, nil
	}
	if err == nil {
		found.stored = left
		s.wake("run-leases")
	}
	return found, err
}

// node is a host as Nova and Placement show it now, and what is stored of it.
type node struct {
	domain.ComputeHost
	region    string
	isThere   bool               // Nova has it
	stored    domain.Node        // Version 0 = nothing is
	drain     *domain.Drain      // the last one, unless the host was uncordoned since
	lease     *domain.Allocation // that has it, or gets it next
	isolation domain.Isolation
	room      map[string]string // of a dry run, by server
}

// status is what watch-nodes has found, or Nova's word on a host that was not watched yet, or is down since.
func (n node) status() domain.NodeStatus {
	status, _ := n.judge()
	return status
}

// judge returns the status with its reason.
func (n node) judge() (status domain.NodeStatus, reason string) {
	const novaSays = "Nova says that it is down"
	isWatched := n.stored.Status != "" && n.stored.Status != domain.NodeUnknown
	switch {
	case n.ForcedDown:
		return domain.NodeDown, "an admin has forced it down in Nova"
	case n.isThere && !n.IsUp && n.stored.Status == domain.NodeUp:
		return domain.NodeSuspect, novaSays
	case isWatched:
		return n.stored.Status, n.stored.StatusReason
	case n.IsUp:
		return domain.NodeUp, ""
	case n.isThere:
		return domain.NodeDown, novaSays
	case n.stored.Pool != "":
		return domain.NodeDown, "Nova has no such host"
	}
	return domain.NodeUnknown, ""
}

// heartbeatAt is the last report of its nova-compute or agent.
func (n node) heartbeatAt() time.Time {
	if n.stored.AgentAt.After(n.SeenAt) {
		return n.stored.AgentAt.UTC()
	}
	return n.SeenAt.UTC()
}

// filter is what a list is narrowed to.
type filter struct {
	statuses    []domain.NodeStatus // none = all
	schedulable *bool
	zone        string
	labels      map[string]string
}

func (f filter) matches(n node) bool {
	for key, value := range f.labels {
		if has, ok := n.stored.Labels[key]; !ok || has != value {
			return false
		}
	}
	return (f.zone == "" || f.zone == n.Zone) && (f.schedulable == nil || *f.schedulable == n.IsEnabled) &&
		(len(f.statuses) == 0 || slices.Contains(f.statuses, n.status()))
}

// changeAttempts bounds the retries of a change while others change the node.
const changeAttempts = 3

// Change changes what admins set of a node.
func (s service) Change(
	ctx context.Context, cloud session, name string, in *ChangeNode, checkVersion func(int64) error,
) (node, error) {
	if text := in.StatusURL.Apply(""); text != "" {
		if err := s.statusURLs.Check(text); err != nil {
			return node{}, apperr.InvalidField("status_url", strings.TrimPrefix(err.Error(), "url: "))
		}
	}
	for range changeAttempts {
		found, _, err := s.get(ctx, cloud, name, cloud.MayChangeServices)
		if err == nil {
			err = checkVersion(found.stored.Version)
		}
		if err != nil {
			return found, err
		}
		settings, err := in.apply(found.stored)
		if err != nil {
			return found, err
		}
		found.stored, err = s.nodes.Describe(ctx, name, settings, found.stored.Version)
		if !errors.Is(err, domain.ErrChanged) {
			return found, err
		}
	}
	return node{}, apperr.New(apperr.Conflict, "others change the node at the same time: try once more")
}

// Delete removes a node that is down and empty: its nova-compute from Nova, with the caller's token, then what is
// stored.
func (s service) Delete(ctx context.Context, cloud session, name string) error {
	found, _, err := s.get(ctx, cloud, name, cloud.MayChangeServices)
	if err == nil {
		err = checkDelete(found)
	}
	if err == nil && found.isThere {
		err = cloud.DeleteService(ctx, found.ServiceID)
	}
	if err != nil || found.stored.Version == 0 {
		return err
	}
	if err = s.nodes.Delete(ctx, name); apperr.CodeOf(err) == apperr.NotFound { // another request has deleted it
		return nil
	}
	return err
}

// checkDelete says why a node cannot be deleted.
func checkDelete(n node) error {
	isReservable := n.stored.Pool != ""
	isDead := n.status() == domain.NodeDown || !n.isThere && n.status() == domain.NodeUnknown
	switch {
	case isReservable:
		return apperr.New(apperr.Conflict, "node %s is reservable: make it unreservable first", n.Name)
	case n.isDraining():
		return apperr.New(apperr.Conflict, "node %s is drained: cancel that first", n.Name)
	case n.CellDown:
		return apperr.New(apperr.Conflict, "the cell of node %s does not answer: whether it is down is unknown", n.Name)
	case n.IsUp || !isDead:
		return apperr.New(apperr.Conflict, "node %s is %s: only a node that is down can be deleted", n.Name, n.status())
	case n.Servers == 1:
		return apperr.New(apperr.Conflict, "node %s has 1 server: move or delete it first", n.Name)
	case n.Servers > 1:
		return apperr.New(apperr.Conflict, "node %s has %d servers: move or delete them first", n.Name, n.Servers)
	}
	return nil
}

// selfTestTime bounds a self-test, which deletes its server after it. It is less than the time of a request.
const selfTestTime = 40 * time.Second

// SelfTest tests on a reservable host whether the cloud keeps servers without the trait off it, and records the result
// for all hosts. It takes the rights of who makes hosts reservable, and of who names a host for a server.
func (s service) SelfTest(ctx context.Context, cloud session, name string) (node, error) {
	found, _, err := s.get(ctx, cloud, name, cloud.MayChangeAggregates)
	if err != nil {
		return found, err
	}
	switch {
	case found.stored.Pool != domain.NodeReservable:
		return found, apperr.New(apperr.Conflict, "host %s is not reservable: only reservable hosts are isolated", name)
	case found.lease != nil && found.lease.From.Before(time.Now().Add(leases.ProbeMargin)):
		return found, apperr.New(apperr.Conflict, "lease %s has host %s until %s: test an idle host",
			found.lease.LeaseID, name, found.lease.Until.UTC().Format(time.RFC3339))
	}
	testing, cancel := context.WithTimeout(ctx, selfTestTime)
	defer cancel()
	result, err := cloud.ProbeHost(testing, name)
	if err == nil {
		err = s.isolations.Set(ctx, s.cloud.Region(), result.Result, result.Detail)
	}
	if err == nil {
		found.isolation, err = s.isolations.Get(ctx, s.cloud.Region())
	}
	return found, err
}

// CreateToken makes the token of a node's agent, in the place of the one before. It is for who may change compute
// services. A host that Nova does not have is stored: an agent may report one.
func (s service) CreateToken(ctx context.Context, cloud session, name string) (domain.Secret, error) {
	if err := cloud.MayChangeServices(ctx); err != nil {
		return "", err
	}
	made := domain.Secret(rand.Text())
	return made, s.nodes.SetToken(ctx, name, agent.Hash(made), cloud.who.UserID)
}

// RevokeToken ends the token of a node's agent.
func (s service) RevokeToken(ctx context.Context, cloud session, name string) error {
	if err := cloud.MayChangeServices(ctx); err != nil {
		return err
	}
	return s.nodes.RevokeToken(ctx, name)
}

// Report records the heartbeat of a node's agent.
func (s service) Report(
	ctx context.Context, name string, token domain.Secret, status domain.NodeStatus, reason string,
) error {
	n, err := s.nodes.Heartbeat(ctx, name, agent.Hash(token), status, reason)
	if err == nil && n.Status != status {
		s.wake("watch-nodes")
	}
	return err
}
