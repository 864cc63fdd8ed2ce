// Command cloudfn is cloudfn's client for people and scripts. Under the name kn-cloud it is a plugin of kn: `kn cloud`.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/account"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/apply"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/callbacks"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/connections"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/flavors"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/floatingips"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/launch"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/leases"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/nodes"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/orders"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/requests"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/resources"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/securitygroups"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/servers"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/stats"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/status"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/volumes"
)

func main() { os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr, commands)) }

// commands lists them all. A new noun is a package and its line here.
func commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{
		resources.Command(a), resources.KeyPairs(a),
		launch.Command(a),
		orders.Command(a),
		servers.Command(a), servers.SSH(a),
		volumes.Command(a), floatingips.Command(a),
		securitygroups.Command(a),
		stats.Command(a),
		requests.Command(a),
		connections.Command(a),
		callbacks.Command(a),
		nodes.Command(a),
		leases.Command(a),
		managed.Command(a), flavors.Command(a),
		apply.Apply(a), apply.Diff(a), apply.Get(a),
		cli.ConfigCommand(a), status.Command(a), status.Version(a),
		account.Login(a), account.Logout(a), account.Token(a),
	}
}
