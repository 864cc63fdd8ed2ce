package watchnodes

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/nodes"
)

// TestMeasure has every metric of a node, and those of its drain.
func TestMeasure(t *testing.T) {
	t.Parallel()
	found := nodes.Observed{
		Nodes: []domain.Node{
			{
				Name: "a", Zone: "z", Status: domain.NodeUp, Enabled: true, Servers: 3, Usage: domain.HostUsage{
					VCPUs: 64, UsedVCPUs: 6, RAMMB: 512, UsedRAMMB: 51, DiskGB: 40, UsedDiskGB: 4,
				},
			},
			{Name: "b", Status: domain.NodeDown},
		},
		Drains: []domain.DrainProgress{{Node: "a", Moved: 5, Unmoved: 2, Skipped: 1}},
	}
	var got []string
	values := measure(found)
	for _, v := range values {
		line := []string{strings.TrimPrefix(v.Gauge, "cloudfn.")}
		for _, key := range []string{"node", "zone", "state", "status", "resource"} {
			if v.By[key] != "" {
				line = append(line, v.By[key])
			}
		}
		if v.N != 0 {
			got = append(got, fmt.Sprintf("%s=%d", strings.Join(line, " "), v.N))
		}
	}
	slices.Sort(got)
	want := []string{
		"node.capacity a z disk_gb=40", "node.capacity a z ram_mb=512", "node.capacity a z vcpus=64",
		"node.drain.servers a left=2", "node.drain.servers a moved=5", "node.drain.servers a skipped=1",
		"node.schedulable a z=1", "node.servers a z=3", "node.state a z up=1", "node.state b down=1",
		"node.used a z disk_gb=4", "node.used a z ram_mb=51", "node.used a z vcpus=6",
		"nodes down=1", "nodes up=1", "nodes.drains_running=1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	zeros := len(values) - len(got)
	if want := 2*3 + 1 + 1 + 2; zeros != want { // states, schedulable, servers, statuses
		t.Errorf("%d values are 0, want %d", zeros, want)
	}
}
