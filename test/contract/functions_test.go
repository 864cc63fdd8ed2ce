// Code generated from functions/main.go by `make generate`. DO NOT EDIT.

package contract_test

import (
	agents "github.com/cloudfn/cloudfn/functions/agents"
	callbacks "github.com/cloudfn/cloudfn/functions/callbacks"
	clock "github.com/cloudfn/cloudfn/functions/clock"
	collectstats "github.com/cloudfn/cloudfn/functions/collect-stats"
	connections "github.com/cloudfn/cloudfn/functions/connections"
	console "github.com/cloudfn/cloudfn/functions/console"
	deliverevents "github.com/cloudfn/cloudfn/functions/deliver-events"
	floatingips "github.com/cloudfn/cloudfn/functions/floating-ips"
	launch "github.com/cloudfn/cloudfn/functions/launch"
	leases "github.com/cloudfn/cloudfn/functions/leases"
	managed "github.com/cloudfn/cloudfn/functions/managed"
	nodes "github.com/cloudfn/cloudfn/functions/nodes"
	pollinstances "github.com/cloudfn/cloudfn/functions/poll-instances"
	reconcilemanaged "github.com/cloudfn/cloudfn/functions/reconcile-managed"
	resources "github.com/cloudfn/cloudfn/functions/resources"
	runconnections "github.com/cloudfn/cloudfn/functions/run-connections"
	runleases "github.com/cloudfn/cloudfn/functions/run-leases"
	securitygroups "github.com/cloudfn/cloudfn/functions/security-groups"
	servers "github.com/cloudfn/cloudfn/functions/servers"
	stats "github.com/cloudfn/cloudfn/functions/stats"
	volumes "github.com/cloudfn/cloudfn/functions/volumes"
	watchnodes "github.com/cloudfn/cloudfn/functions/watch-nodes"

	"github.com/cloudfn/cloudfn/shared/run"
)

// everyFunction are the functions of the daemon.
var everyFunction = []run.Function{
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
}
