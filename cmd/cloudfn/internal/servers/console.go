package servers

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// consoleTypes are the types of remote consoles.
var consoleTypes = []string{"novnc", "spice-html5", "rdp-html5", "serial", "webmks"}

func (s *servers) consoleCommand() *cobra.Command {
	var kind string
	cmd := s.oneCommand("console", "Print the end of a server's console log",
		[]string{"getServerConsole", "openServerConsole"}, func(cmd *cobra.Command, id string) error {
			if cmd.Flags().Changed("url") {
				return s.openConsole(cmd, id, kind)
			}
			query := cli.Query(cmd.Flags(), "lines")
			found, err := api.Get[api.ServerConsoleLog](cmd.Context(), s.API(), consolePath(id), query)
			if err != nil {
				return err
			}
			return s.printText(found.Value.Output, func() error {
				return output.One(&s.Print, found, output.Table[api.ServerConsoleLog]{})
			})
		})
	cmd.Long = `Print the last lines of a server's console log: messages of the boot, and of cloud-init. With --url
print a URL that opens its remote console instead. The URL is a secret: whoever has it controls the server, until the
cloud's token in it expires.`
	cmd.Example = "  cloudfn servers console web-1 --lines 20\n  cloudfn servers console web-1 --url"
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if s.connection != "" {
			return exit.Usagef("--connection cannot be combined with it: consoles take a token of the server's project")
		}
		return cobra.ExactArgs(1)(cmd, args)
	}
	cmd.Flags().Int("lines", 100, "lines of the log, 1 to 1000")
	cmd.Flags().StringVar(&kind, "url", "",
		"print a URL of the remote console of this type ("+strings.Join(consoleTypes, ", ")+")")
	cmd.Flags().Lookup("url").NoOptDefVal = consoleTypes[0]
	cmd.MarkFlagsMutuallyExclusive("url", "lines")
	cli.Choices(cmd, "url", consoleTypes...)
	return cmd
}

func consolePath(id string) string { return "/v1/servers/" + url.PathEscape(id) + "/console" }

func (s *servers) openConsole(cmd *cobra.Command, id, kind string) error {
	if !slices.Contains(consoleTypes, kind) {
		return exit.Usagef("--url is %q: it must be one of %s", kind, strings.Join(consoleTypes, ", "))
	}
	body := api.ServerConsoleRequest{Type: api.ServerConsoleRequestType(kind)}
	opened, err := api.Send[api.ServerConsole](cmd.Context(), s.API(), http.MethodPost, consolePath(id), body)
	if err != nil {
		return err
	}
	return s.printText(opened.Value.URL, func() error {
		return output.One(&s.Print, opened, output.Table[api.ServerConsole]{})
	})
}

// printText prints a text as it is, or by data in a format for programs. Characters that could command a terminal are
// replaced.
func (s *servers) printText(text string, data func() error) error {
	if s.Print.IsData() {
		return data()
	}
	if text = strings.TrimSuffix(text, "\n"); text == "" {
		return nil
	}
	var clean strings.Builder
	for _, r := range text {
		if r == '\n' || r == '\t' {
			clean.WriteRune(r)
		} else {
			clean.WriteString(output.Clean(string(r)))
		}
	}
	_, err := fmt.Fprintln(s.Print.Out, clean.String())
	return err
}
