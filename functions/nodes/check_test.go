package nodes

import (
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestCheckDelete has a row for each reason to keep a node.
func TestCheckDelete(t *testing.T) {
	t.Parallel()
	down := node{
		ComputeHost: domain.ComputeHost{Name: "a"}, isThere: true, stored: domain.Node{Status: domain.NodeDown},
	}
	for name, tc := range map[string]struct {
		change func(*node)
		want   string // "" = it is deleted
	}{
		"down and empty":               {func(*node) {}, ""},
		"never seen, and not in Nova":  {func(n *node) { n.isThere, n.stored.Status = false, domain.NodeUnknown }, ""},
		"suspect":                      {func(n *node) { n.stored.Status = domain.NodeSuspect }, "node a is suspect: only"},
		"up":                           {func(n *node) { n.stored.Status, n.IsUp = "up", true }, "node a is up: only"},
		"up again, and not polled yet": {func(n *node) { n.IsUp = true }, "only a node that is down"},
		"its cell is down":             {func(n *node) { n.CellDown = true }, "the cell of node a does not answer"},
		"a server":                     {func(n *node) { n.Servers = 1 }, "node a has 1 server: move or delete it"},
		"servers":                      {func(n *node) { n.Servers = 2 }, "node a has 2 servers: move or delete them"},
		"reservable":                   {func(n *node) { n.stored.Pool = domain.NodeReservable }, "node a is reservable"},
		"drained": {
			func(n *node) { n.drain = &domain.Drain{Status: domain.DrainRunning} }, "node a is drained: cancel that",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := down
			tc.change(&n)
			err := checkDelete(n)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// TestDryRunSaysWhatTheListSays: a drain is refused with the status and the reason that the list shows.
func TestDryRunSaysWhatTheListSays(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		node node
		want domain.NodeStatus
	}{
		"forced down": {
			node{ComputeHost: domain.ComputeHost{ForcedDown: true}, stored: domain.Node{Status: domain.NodeUp}}, "down",
		},
		"down in Nova, and up at the last poll": {node{stored: domain.Node{Status: domain.NodeUp}}, "suspect"},
		"suspect for watch-nodes, and down in Nova": {
			node{stored: domain.Node{Status: domain.NodeSuspect, StatusReason: "no report"}}, "suspect",
		},
		"down for watch-nodes": {
			node{
				ComputeHost: domain.ComputeHost{IsUp: true},
				stored:      domain.Node{Status: domain.NodeDown, StatusReason: "its agent says so"},
			}, "down",
		},
		"never watched": {node{}, "down"},
	} {
		tc.node.Name, tc.node.isThere = "a", true
		shown := show(tc.node, true)
		err := checkDrain(tc.node, nil, true)
		want := "node a is " + string(shown.Status) + " (" + shown.StatusReason + "): servers cannot be moved off it"
		if shown.Status != tc.want || shown.StatusReason == "" || err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: the list shows %s (%s), the drain is refused with %v", name, shown.Status, shown.StatusReason, err)
		}
	}
}
