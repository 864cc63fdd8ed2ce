package managed

import (
	"fmt"
	"slices"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// hasLabels reports whether a node has all of the labels.
func hasLabels(n domain.Node, labels map[string]string) bool {
	for key, value := range labels {
		if got, found := n.Labels[key]; !found || got != value {
			return false
		}
	}
	return true
}

// zonesOf lists the availability zones with a node that has the labels.
func zonesOf(nodes []domain.Node, labels map[string]string) []string {
	var zones []string
	for _, n := range nodes {
		if hasLabels(n, labels) && n.Zone != "" && !slices.Contains(zones, n.Zone) {
			zones = append(zones, n.Zone)
		}
	}
	slices.Sort(zones)
	return zones
}

// scheduled reports whether the servers of a resource run where its schedule says, as far as that is known.
func (m *resource) scheduled(nodes []domain.Node) (isMet bool, reason, message string) {
	rule := m.Schedule
	for _, member := range m.Members {
		if len(rule.Labels) == 0 {
			break
		}
		n := slices.IndexFunc(nodes, func(n domain.Node) bool { return n.Name == member.Node })
		switch {
		case member.Node == "":
			return false, "NodeUnknown", "it is not known yet on which node it runs"
		case n < 0 || !hasLabels(nodes[n], rule.Labels):
			return false, "OtherNode", fmt.Sprintf("the node %s has not the labels of the schedule", member.Node)
		}
	}
	servers, elsewhere, onHost := 0, 0, map[string]int{}
	for _, s := range m.members {
		server, ok := s.object.Raw.(domain.Server)
		if !ok || !s.isFound || server.HostID == "" { // on no host yet
			continue
		}
		servers++
		onHost[server.HostID]++
		if rule.Zone != "" && server.Zone != "" && server.Zone != rule.Zone {
			elsewhere++
		}
	}
	if elsewhere > 0 {
		return false, "OtherZone", fmt.Sprintf("%d of %d servers are in another zone than %s", elsewhere, servers,
			rule.Zone)
	}
	if !m.Kind.IsDeployment() || servers == 0 {
		return true, "AsDeclared", ""
	}
	shared, fullest := 0, 0
	for _, n := range onHost {
		if fullest = max(fullest, n); n > 1 {
			shared += n
		}
	}
	switch {
	case rule.Affinity == "pack" && len(onHost) > 1:
		return false, "SeveralHosts", fmt.Sprintf("%d servers run on %d hosts", servers, len(onHost))
	case rule.Affinity == "spread" && fullest > mostPerHost(servers, rule, nodes):
		return false, "SharedHost", fmt.Sprintf("%d of %d servers share a host", shared, servers)
	}
	return true, "AsDeclared", ""
}

// mostPerHost is how many of so many servers a host has when they are spread over all nodes that may have them. It is 1
// when the nodes are not known.
func mostPerHost(servers int, rule domain.Schedule, nodes []domain.Node) int {
	usable := 0
	for _, n := range nodes {
		isInZone := rule.Zone == "" || n.Zone == rule.Zone
		if n.Status == domain.NodeUp && n.Enabled && n.Pool == "" && isInZone && hasLabels(n, rule.Labels) {
			usable++
		}
	}
	if usable == 0 {
		return 1
	}
	return (servers + usable - 1) / usable
}
