// Command cloudfn is cloudfn's client for people and scripts. Under the name kn-cloud it is a plugin of kn: `kn cloud`.
package main

import (
	"os"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) }
