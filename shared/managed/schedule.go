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
func scheduled(m domain.Managed, nodes []domain.Node) (isMet bool, reason, message string) {
	if len(m.Schedule.Labels) == 0 {
		return true, "AsDeclared", ""
	}
	for _, member := range m.Members {
		n := slices.IndexFunc(nodes, func(n domain.Node) bool { return n.Name == member.Node })
		switch {
		case member.Node == "":
			return false, "NodeUnknown", "it is not known yet on which node it runs"
		case n < 0 || !hasLabels(nodes[n], m.Schedule.Labels):
			return false, "OtherNode", fmt.Sprintf("the node %s has not the labels of the schedule", member.Node)
		}
	}
	return true, "AsDeclared", ""
}
