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
func measure(found nodes.Observed, running []domain.DrainProgress) (out []obs.Value) {
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
		add(schedulableGauge, oneIf(n.Enabled), map[string]string{"node": n.Name, "zone": n.Zone})
	}
	for _, status := range statuses {
		add(nodesGauge, counts[status], map[string]string{"status": string(status)})
	}
	for _, h := range found.Hosts {
		if h.CellDown {
			continue
		}
		for resource, n := range map[string][2]int{
			"vcpus": {h.VCPUs, h.UsedVCPUs}, "ram_mb": {h.RAMMB, h.UsedRAMMB}, "disk_gb": {h.DiskGB, h.UsedDiskGB},
		} {
			by := map[string]string{"node": h.Name, "zone": h.Zone, "resource": resource}
			add(capacityGauge, n[0], by)
			add(usedGauge, n[1], by)
		}
		add(serversGauge, h.Servers, map[string]string{"node": h.Name, "zone": h.Zone})
	}
	add(drainsGauge, len(running), nil)
	for _, d := range running {
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
