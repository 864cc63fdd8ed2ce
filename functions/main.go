// Command functions is the whole of cloudfn in one binary. FUNCTION_TARGET picks the function to serve; unset,
// it is a daemon that serves all of them. `functions migrate` brings the database's schema up to date, and `functions
// gateway` is one base URL for functions that run one by one.
package main

import (
	_ "embed"
	"os"

	_ "github.com/cloudfn/cloudfn/functions/collect-stats" // each function registers itself
	_ "github.com/cloudfn/cloudfn/functions/launch"
	_ "github.com/cloudfn/cloudfn/functions/resources"
	_ "github.com/cloudfn/cloudfn/functions/servers"
	_ "github.com/cloudfn/cloudfn/functions/stats"
	"github.com/cloudfn/cloudfn/shared/run"
)

//go:embed openapi.yaml
var openapi []byte

func main() { os.Exit(run.Main(openapi)) }
