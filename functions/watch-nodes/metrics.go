package watchnodes

import (
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/nodes"
	"github.com/cloudfn/cloudfn/shared/obs"
)

// The metrics. A tick pushes them once, of the nodes that there are then.
const (
	nodesGauge       = "cloudfn.nodes"
	drainsGauge      = "cloudfn.nodes.drains_running"
	stateGauge       = "cloudfn.node.state"
	schedulableGauge = "cloudfn.node.schedulable"
	capacityGauge    = "cloudfn.node.capacity"
	usedGauge        = "cloudfn.node.used"
	serversGauge     = "cloudfn.node.servers"
	drainGauge       = "cloudfn.node.drain.servers"
)

var gauges = []obs.GaugeOf{
	{Name: nodesGauge, Description: "Nodes by their status."},
	{Name: drainsGauge, Description: "Drains that are not over."},
	{Name: stateGauge, Description: "1 for the status that a node has, 0 for the others."},
	{Name: schedulableGauge, Description: "1 when Nova places servers on a node, 0 when it is disabled."},
	{Name: capacityGauge, Description: "What the hypervisors of a node have, by Nova: without allocation ratios."},
	{Name: usedGauge, Description: "What servers use of that."},
	{Name: serversGauge, Description: "Servers on a node."},
	{Name: drainGauge, Description: "Servers of a running drain: moved, left or skipped."},
}

var statuses = []domain.NodeStatus{domain.NodeUp, domain.NodeSuspect, domain.NodeDown, domain.NodeUnknown}

// measure returns the metrics of the nodes and their drains.
func measure(found nodes.Observed) (out []obs.Value) {
	add := func(gauge string, n int, by map[string]string) {
		out = append(out, obs.Value{Gauge: gauge, N: int64(n), By: by})
	}
	counts := map[domain.NodeStatus]int{}
	for _, n := range found.Nodes {
		counts[n.Status]++
		for _, status := range statuses {
			add(stateGauge, oneIf(n.Status == status), map[string]string{
				"node": n.Name, "zone": n.Zone, "state": string(status),
			})
		}
		at := map[string]string{"node": n.Name, "zone": n.Zone}
		add(schedulableGauge, oneIf(n.Enabled), at)
		add(serversGauge, n.Servers, at)
		if u := n.Usage; u != (domain.HostUsage{}) {
			for resource, sizes := range map[string][2]int{
				"vcpus": {u.VCPUs, u.UsedVCPUs}, "ram_mb": {u.RAMMB, u.UsedRAMMB}, "disk_gb": {u.DiskGB, u.UsedDiskGB},
			} {
				by := map[string]string{"node": n.Name, "zone": n.Zone, "resource": resource}
				add(capacityGauge, sizes[0], by)
				add(usedGauge, sizes[1], by)
			}
		}
	}
	for _, status := range statuses {
		add(nodesGauge, counts[status], map[string]string{"status": string(status)})
	}
	add(drainsGauge, len(found.Drains), nil)
	for _, d := range found.Drains {
		for state, n := range map[string]int{"moved": d.Moved, "left": d.Unmoved, "skipped": d.Skipped} {
			add(drainGauge, n, map[string]string{"node": d.Node, "state": state})
		}
	}
	return out
}

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}
