package servers

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/resources"
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
	t, err := s.resolveOne(ctx, server)
	if err != nil {
		return err
	}
	if image != "" && !cli.IsID(image) {
		if image, err = resources.ImageID(ctx, s.App, image); err != nil {
			return err
		}
	}
	if image != "" {
		body["server_image"] = image
	}
	return s.act(ctx, []target{t}, string(api.ServerActionActionDeploy), body, wait)
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
