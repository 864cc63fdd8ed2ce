package nodes

import (
	"slices"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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

// checkLast keeps the last host of a zone and pool that takes servers from being cordoned without force.
func checkLast(found node, all []node, isForced bool) error {
	hosts, pooled := make([]domain.ComputeHost, len(all)), map[string]bool{}
	for i, n := range all {
		hosts[i], pooled[n.Name] = n.ComputeHost, n.stored.Pool != ""
	}
	if isForced || !domain.IsLast(found.Name, hosts, func(name string) bool { return pooled[name] }) {
		return nil
	}
	kind := "ordinary" // on reservable hosts only servers of reservations land
	if found.stored.Pool != "" {
		kind = "reservable"
	}
	return apperr.New(apperr.Conflict, "no other %s host of zone %s is up and enabled to take servers in the place of "+
		"node %s: repeat it with force", kind, found.Zone, found.Name)
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
