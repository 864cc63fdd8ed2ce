// Command functions is the whole of cloudfn in one binary. FUNCTION_TARGET picks the function to serve; unset,
// it is a daemon that serves all of them. `functions migrate` brings the database's schema up to date, `functions
// gateway` is one base URL for functions that run one by one, `functions keys` makes the keys of stored secrets, `functions
// trustee` says to which user trusts are made, and `functions check` tries every setting.
package main

import (
	_ "embed"
	"os"

	_ "github.com/cloudfn/cloudfn/functions/agents" // each function registers itself
	_ "github.com/cloudfn/cloudfn/functions/callbacks"
	_ "github.com/cloudfn/cloudfn/functions/collect-stats"
	_ "github.com/cloudfn/cloudfn/functions/connections"
	_ "github.com/cloudfn/cloudfn/functions/console"
	_ "github.com/cloudfn/cloudfn/functions/deliver-events"
	_ "github.com/cloudfn/cloudfn/functions/launch"
	_ "github.com/cloudfn/cloudfn/functions/poll-instances"
	_ "github.com/cloudfn/cloudfn/functions/resources"
	_ "github.com/cloudfn/cloudfn/functions/run-connections"
	_ "github.com/cloudfn/cloudfn/functions/servers"
	_ "github.com/cloudfn/cloudfn/functions/stats"
	"github.com/cloudfn/cloudfn/shared/run"
)

//go:embed openapi.yaml
var openapi []byte

func main() { os.Exit(run.Main(run.Texts{OpenAPI: openapi})) }
