package servers

import (
	"cmp"
	"context"
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
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/resources"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// deployment has the flags that are no fields of the request. Secrets come from files: command lines show in process
// lists and shell histories.
type deployment struct {
	serverImage                string
	env                        []string
	envFile                    string
	joinTokenFile              string
	registryUser, passwordFile string
}

func (s *servers) deployCommand() *cobra.Command {
	var d deployment
	var wait cli.Wait
	cmd := &cobra.Command{
		Use:   "deploy SERVER --image REF --confirm-rebuild [-- ARG...]",
		Short: "Run a container on a tracked server, after a rebuild of its disk",
		Long: `Have Nova rebuild a tracked server with a cloud-config that runs a container under systemd. The rebuild
destroys what is on the server's disk. Arguments after -- go to the container. Files with secrets may be -, the
standard input.`,
		Example: `  cloudfn servers deploy web-1 --image registry.example.com/team/agent:1.4.2 --join-token-file token \
    --confirm-rebuild --wait
  pass registry | cloudfn servers deploy web-1 --image registry.example.com/agent:2 --registry-user robot \
    --registry-password-file - --confirm-rebuild`,
		Annotations: cli.Calls("actOnServer", "getServer", "listServers", "listResources"),
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args = args[:dash]
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		ValidArgsFunction: s.Complete(1, s.finder(filter{})),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := cli.Body(cmd.Flags(), "image", "confirm-rebuild", "id")
			if err := d.read(s.App, body); err != nil {
				return err
			}
			if len(args) > 1 {
				body["command"] = args[1:]
			}
			return s.deploy(cmd.Context(), args[0], d.serverImage, body, wait)
		},
	}
	flags := cmd.Flags()
	flags.String("image", "", "reference of an OCI image, with a tag or a digest")
	flags.StringArrayVar(&d.env, "env", nil, "K=V, a variable of the container; K alone takes its value from here")
	flags.StringVar(&d.envFile, "env-file", "", "file of such lines, for secret values")
	flags.StringVar(&d.joinTokenFile, "join-token-file", "", "file with the agent's JOIN_TOKEN")
	flags.StringVar(&d.registryUser, "registry-user", "", "login to the image's registry")
	flags.StringVar(&d.passwordFile, "registry-password-file", "", "file with its password")
	flags.StringVar(&d.serverImage, "server-image", "", "image for the disk, by id or name (default the current one)")
	flags.Bool("confirm-rebuild", false, "yes, what is on the server's disk may be lost")
	idFlag(cmd)
	wait.Flags(cmd, "the agent is ready")
	s.CompleteFlag(cmd, "server-image", resources.Finder(s.App, "images"))
	return cmd
}

func (s *servers) deploy(ctx context.Context, server, image string, body map[string]any, wait cli.Wait) error {
	targets, err := s.resolve(ctx, server)
	if _, err = cli.One(targets, err); err != nil {
		return err
	}
	if image != "" {
		if body["server_image"], err = resources.ImageID(ctx, s.App, image); err != nil {
			return err
		}
	}
	return s.act(ctx, targets, string(api.ServerActionActionDeploy), body, wait)
}

// check finds what is missing, and contradictions between flags.
func (d deployment) check(body map[string]any) error {
	stdins := 0
	for _, file := range []string{d.envFile, d.joinTokenFile, d.passwordFile} {
		if file == "-" {
			stdins++
		}
	}
	switch {
	case body["image"] == nil:
		return exit.Usagef("--image is missing: it names the OCI image to run, with a tag or a digest")
	case body["confirm_rebuild"] == nil:
		return exit.Usagef(
			"deploy rebuilds the server, which destroys what is on its disk: add --confirm-rebuild if you mean it")
	case (d.registryUser == "") != (d.passwordFile == ""):
		return exit.Usagef("--registry-user and --registry-password-file go together")
	case stdins > 1:
		return exit.Usagef("only one file can be -, the standard input")
	}
	return nil
}

// read adds to a request what the files have that flags name.
func (d deployment) read(a *cli.App, body map[string]any) error {
	if err := d.check(body); err != nil {
		return err
	}
	variables, err := d.variables(a)
	if err != nil {
		return err
	}
	if len(variables) > 0 {
		body["env"] = variables
	}
	if d.joinTokenFile != "" {
		token, err := a.ReadSecret("--join-token-file", d.joinTokenFile)
		if err != nil {
			return err
		}
		body["join_token"] = token.Reveal()
	}
	if d.registryUser != "" {
		password, err := a.ReadSecret("--registry-password-file", d.passwordFile)
		if err != nil {
			return err
		}
		body["registry"] = api.RegistryLogin{Username: d.registryUser, Password: password.Reveal()}
	}
	return nil
}

// variables are those of the file, overridden by those of the flags.
func (d deployment) variables(a *cli.App) (map[string]string, error) {
	var text string
	if d.envFile != "" {
		var err error
		if text, err = a.ReadText("--env-file", d.envFile); err != nil {
			return nil, err
		}
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	variables := map[string]string{}
	for _, line := range append(lines, d.env...) {
		name, value, hasValue := strings.Cut(line, "=")
		if !hasValue {
			if value, hasValue = a.Env(name); !hasValue { // the error must not show a value, which may be secret
				return nil, exit.Usagef("the variable %s has no value: write K=V, or set it here", name)
			}
		}
		variables[name] = value
	}
	return variables, nil
}

// connected is the answer to connect. Through a connection the action is only begun, and less is known.
type connected struct {
	api.ServerConnected
	ActionID string `json:"action_id"`
}

var connectedTable = output.Table[connected]{Columns: []string{
	"INSTANCE:id", "SERVER:server_id", "STATE*", "ORIGIN", "CONNECTION:connection_id", "ACTION:action_id",
}}

func (s *servers) connectCommand() *cobra.Command {
	var id string
	cmd := s.oneCommand("connect", "Track an existing server", []string{"connectServer"},
		func(cmd *cobra.Command, server string) error {
			body := api.ServerConnect{ServerID: server, ID: cli.Optional(id), ConnectionID: cli.Optional(s.connection)}
			made := cli.Noun[connected]{Table: connectedTable}
			return made.Send(cmd.Context(), s.App, http.MethodPost, "/v1/servers", body)
		})
	cmd.Long = `Track an existing server as an instance: cloudfn follows its state, and sends its changes to
callbacks. The server itself does not change. A server that is tracked already stays the same instance.`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(1)(cmd, args); err != nil || s.connection == "" || cli.IsID(args[0]) {
			return err
		}
		return exit.Usagef("a connection lists only the servers that it manages: give the server's id")
	}
	cmd.ValidArgsFunction = s.Complete(1, s.finder(filter{isTracked: new(bool)}))
	cmd.Flags().StringVar(&id, "id", "", "id of the instance (default a new one)")
	return cmd
}

func (s *servers) disconnectCommand() *cobra.Command {
	return s.oneCommand("disconnect", "Stop tracking a server, which keeps running", []string{"deleteServer"},
		func(cmd *cobra.Command, id string) error {
			query := url.Values{"mode": {"disconnect"}}
			if s.connection != "" {
				query.Set("connection_id", s.connection)
			}
			return s.API().Do(cmd.Context(), http.MethodDelete, "/v1/servers/"+id+"?"+query.Encode(), nil, nil)
		})
}

var changedTable = output.Table[api.ServerChanged]{
	Columns: []string{"INSTANCE:id", "SERVER:server_id", "STATE*", "CONNECTION:connection_id", "REUSABLE"},
}

func (s *servers) reusableCommand() *cobra.Command {
	var isOff bool
	cmd := s.oneCommand("reusable", "Let orders with --reuse take a stopped server", []string{"changeServer"},
		func(cmd *cobra.Command, id string) error {
			path, body := "/v1/servers/"+id, map[string]any{"reusable": !isOff}
			changed := cli.Noun[api.ServerChanged]{Table: changedTable}
			return changed.Send(cmd.Context(), s.App, http.MethodPatch, path, body)
		})
	cmd.Long = `Let orders with --reuse take a server of your project that is managed through a connection, while it
is stopped. Its disk stays as it is. Orders can take servers that were launched through the connection without this,
until --off forbids it.`
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if s.connection != "" {
			return exit.Usagef(
				"--connection cannot be combined with it: only a user of the server's own project says what may be " +
					"reused")
		}
		return cobra.ExactArgs(1)(cmd, args)
	}
	cmd.Flags().BoolVar(&isOff, "off", false, "forbid it")
	return cmd
}

// actions are those through connections; the others end with their answers.
var actions = cli.Noun[api.DelegatedAction]{
	Path: "/v1/servers/actions",
	Table: output.Table[api.DelegatedAction]{Columns: []string{
		"ID", "ACTION", "STATUS*", "ERROR:error.detail", "IMAGE:image_id", "INSTANCE:instance_id",
		"CONNECTION:connection_id", "CREATED:created_at", "UPDATED:updated_at",
	}},
}

func (s *servers) actionCommand() *cobra.Command {
	var wait cli.Wait
	cmd := &cobra.Command{
		Use: "action ID --connection ID", Short: "Show the result of an action through a connection",
		Args: cobra.ExactArgs(1), Annotations: cli.Calls("getServerAction"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.connection == "" {
				return exit.Usagef("--connection is needed: cloudfn keeps only actions through a connection")
			}
			return s.showAction(cmd.Context(), args[0], wait)
		},
	}
	wait.Flags(cmd, "the action is done or has failed")
	return cmd
}

func (s *servers) showAction(ctx context.Context, id string, wait cli.Wait) error {
	found, err := cli.Waiter[api.Item[api.DelegatedAction]]{
		Get: func(ctx context.Context) (api.Item[api.DelegatedAction], error) { return s.getAction(ctx, id) },
		Done: func(d api.Item[api.DelegatedAction]) (bool, error) {
			return d.Value.Status != api.DelegatedActionStatusRunning, nil
		},
		Remaining: func(d api.Item[api.DelegatedAction]) string {
			return "the action is " + cmp.Or(string(d.Value.Status), "not known yet")
		},
	}.Wait(ctx, s.App, wait, api.Item[api.DelegatedAction]{})
	if err != nil {
		return err
	}
	if err := actions.Print(s.App, found); err != nil {
		return err
	}
	if found.Value.Status == api.DelegatedActionStatusFailed {
		return exit.Failedf("%s failed: %s", found.Value.Action, domain.Deref(found.Value.Error).Detail)
	}
	return nil
}

// consoleTypes are the types of remote consoles.
var consoleTypes = []string{"novnc", "spice-html5", "rdp-html5", "serial", "webmks"}

func (s *servers) consoleCommand() *cobra.Command {
	var kind string
	cmd := s.oneCommand("console", "Print the end of a server's console log",
		[]string{"getServerConsole", "openServerConsole"}, func(cmd *cobra.Command, id string) error {
			if err := s.TextOnly(cmd, "table", "wide", "value", "json", "yaml"); err != nil {
				return err
			}
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
print a URL that opens its remote console instead. The URL is a secret: anyone who has it controls the server, until the
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

func (s *servers) snapshotCommand() *cobra.Command {
	cmd := s.actCommand("snapshot", "Make images of servers",
		"  cloudfn servers snapshot web-1 --name web-1-before-upgrade --wait")
	cmd.Long = `Make an image of each server's disk. The result has the image's id; --wait waits until the image is
active, so that servers can be launched from it.`
	cmd.Annotations = cli.Calls("actOnServer", "actOnServers", "getServerAction", "listResources", "listServers")
	idFlag(cmd)
	cmd.Flags().String("name", "", "the image's name (default the server's)")
	return cmd
}

// pollImage waits for the image of a snapshot with the caller's own token.
func (s *servers) pollImage(ctx context.Context, w *waiter) error {
	query := url.Values{"kinds": {"images"}}
	found, err := api.Get[api.Resources](ctx, s.API(), "/v1/resources", query)
	if err != nil {
		return err
	}
	w.note = ", and its image is not active yet"
	for _, image := range domain.Deref(found.Value.Images) {
		if image.ID == w.ImageID {
			w.note = ", and its image is " + image.Status
			w.isDone = image.Status == "active"
		}
	}
	return nil
}
