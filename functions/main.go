// Command functions is the whole of cloudfn in one binary. FUNCTION_TARGET picks the function to serve; unset, it is a
// daemon that serves all of them. `functions migrate` brings the database's schema up to date, `functions gateway` is
// one base URL for functions that run one by one, `functions keys` makes the keys of stored secrets, `functions keys
// status` finds missing ones, `functions trustee` prints the user to whom trusts are made, `functions check` tries
// every setting, `functions projects` lists and ends what projects have left that are not served any more, and
// `functions describe` prints what the functions declare.
package main

import (
	_ "embed"
	"os"

	"github.com/cloudfn/cloudfn/functions/agents"
	"github.com/cloudfn/cloudfn/functions/callbacks"
	"github.com/cloudfn/cloudfn/functions/clock"
	collectstats "github.com/cloudfn/cloudfn/functions/collect-stats"
	"github.com/cloudfn/cloudfn/functions/connections"
	"github.com/cloudfn/cloudfn/functions/console"
	deliverevents "github.com/cloudfn/cloudfn/functions/deliver-events"
	floatingips "github.com/cloudfn/cloudfn/functions/floating-ips"
	"github.com/cloudfn/cloudfn/functions/launch"
	"github.com/cloudfn/cloudfn/functions/leases"
	"github.com/cloudfn/cloudfn/functions/managed"
	"github.com/cloudfn/cloudfn/functions/nodes"
	pollinstances "github.com/cloudfn/cloudfn/functions/poll-instances"
	reconcilemanaged "github.com/cloudfn/cloudfn/functions/reconcile-managed"
	"github.com/cloudfn/cloudfn/functions/resources"
	runconnections "github.com/cloudfn/cloudfn/functions/run-connections"
	runleases "github.com/cloudfn/cloudfn/functions/run-leases"
	securitygroups "github.com/cloudfn/cloudfn/functions/security-groups"
	"github.com/cloudfn/cloudfn/functions/servers"
	"github.com/cloudfn/cloudfn/functions/stats"
	"github.com/cloudfn/cloudfn/functions/volumes"
	watchnodes "github.com/cloudfn/cloudfn/functions/watch-nodes"
	"github.com/cloudfn/cloudfn/shared/run"
)

//go:embed openapi.yaml
var openapi []byte

func main() {
	os.Exit(run.Main(run.Texts{OpenAPI: openapi},
		agents.Function,
		callbacks.Function,
		clock.Function,
		collectstats.Function,
		connections.Function,
		console.Function,
		deliverevents.Function,
		floatingips.Function,
		launch.Function,
		leases.Function,
		managed.Function,
		nodes.Function,
		pollinstances.Function,
		reconcilemanaged.Function,
		resources.Function,
		runconnections.Function,
		runleases.Function,
		securitygroups.Function,
		servers.Function,
		stats.Function,
		volumes.Function,
		watchnodes.Function,
	))
}
