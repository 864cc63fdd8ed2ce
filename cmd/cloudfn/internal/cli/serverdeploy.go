package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

// deployment is what the flags of deploy say. Secrets come from files, so that no list of processes and no shell's history has them.
type deployment struct {
	image, serverImage         string
	env                        []string
	envFile                    string
	joinTokenFile              string
	registryUser, passwordFile string
	confirmed                  bool
	id                         string
}

func (s *servers) deployCommand() *cobra.Command {
	var d deployment
	var w waiting
	cmd := &cobra.Command{
		Use:   "deploy SERVER --image REF --confirm-rebuild [-- ARG...]",
		Short: "Run a container on a tracked server, whose disk is made anew",
		Long: `Have Nova rebuild a tracked server with a cloud-config that runs a container under systemd. Its disk is made anew: what is on it
is lost. Arguments after -- go to the container. Files that hold secrets may be -, which is the standard input.`,
		Example: `  cloudfn servers deploy web-1 --image registry.example.com/team/agent:1.4.2 --join-token-file token --confirm-rebuild --wait
  pass registry | cloudfn servers deploy web-1 --image registry.example.com/agent:2 --registry-user robot --registry-password-file - --confirm-rebuild`,
		Annotations: calls("actOnServer", "getServer", "listServers", "listResources"),
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args = args[:dash]
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		ValidArgsFunction: s.completeServers(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := d.body(cmd.Context(), s.app)
			if err != nil {
				return err
			}
			if len(args) > 1 {
				command := args[1:]
				body.Command = &command
			}
			body.ID = optional(d.id)
			return s.deploy(cmd.Context(), args[0], d.serverImage, body, w)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&d.image, "image", "", "reference of an OCI image, with a tag or a digest")
	flags.StringArrayVar(&d.env, "env", nil, "K=V, a variable of the container; K alone takes its value from here")
	flags.StringVar(&d.envFile, "env-file", "", "file of such lines, for values that are secret")
	flags.StringVar(&d.joinTokenFile, "join-token-file", "", "file of what the agent joins with (its JOIN_TOKEN)")
	flags.StringVar(&d.registryUser, "registry-user", "", "login to the image's registry")
	flags.StringVar(&d.passwordFile, "registry-password-file", "", "file of its password")
	flags.StringVar(&d.serverImage, "server-image", "", "image that the disk is made from, an id or a name (default the one that it has)")
	flags.BoolVar(&d.confirmed, "confirm-rebuild", false, "yes, what is on the server's disk may be lost")
	idFlag(cmd, &d.id)
	w.flags(cmd, "the agent says that it is ready")
	_ = cmd.RegisterFlagCompletionFunc("server-image", s.complete(func(ctx context.Context) ([]string, error) { return s.resourceNames(ctx, "images") }))
	return cmd
}

func (s *servers) deploy(ctx context.Context, server, image string, body api.ServerAction, w waiting) error {
	client, err := s.api(ctx)
	if err != nil {
		return err
	}
	t, err := s.resolveOne(ctx, client, server)
	if err != nil {
		return err
	}
	if image != "" && !isID(image) {
		if image, err = imageID(ctx, client, image); err != nil {
			return err
		}
	}
	body.Action, body.ConnectionID, body.ServerImage = api.ServerActionActionDeploy, optional(s.connection), optional(image)
	return s.act(ctx, client, []target{t}, body, w)
}

// imageID finds the only image of the name.
func imageID(ctx context.Context, client *api.Client, name string) (string, error) {
	found, err := api.One[api.Resources](ctx, client, "/v1/resources", map[string][]string{"kinds": {"images"}})
	if err != nil {
		return "", err
	}
	var ids []string
	for _, i := range value(found.Value.Images) {
		if i.Name == name {
			ids = append(ids, i.ID)
		}
	}
	switch len(ids) {
	case 0:
		return "", absent{fmt.Errorf("there is no image %q", name)}
	case 1:
		return ids[0], nil
	}
	return "", conflict{fmt.Errorf("%d images are named %q: give one of the ids %s", len(ids), name, strings.Join(ids, ", "))}
}

// body reads what the flags name.
func (d deployment) body(ctx context.Context, a *app) (body api.ServerAction, err error) {
	if d.image == "" {
		return body, wrong("--image is missing: it names the OCI image to run, with a tag or a digest")
	}
	if !d.confirmed {
		return body, wrong("to deploy makes the server's disk anew, and what is on it is lost: say --confirm-rebuild if you mean it")
	}
	if (d.registryUser == "") != (d.passwordFile == "") {
		return body, wrong("--registry-user and --registry-password-file go together")
	}
	if d.fromInput() > 1 {
		return body, wrong("only one file can be -, the standard input")
	}
	body.Image, body.ConfirmRebuild = &d.image, &d.confirmed
	variables, err := d.variables(a)
	if err != nil {
		return body, err
	}
	if len(variables) > 0 {
		body.Env = &variables
	}
	if d.joinTokenFile != "" {
		token, err := a.secret(ctx, "--join-token-file", d.joinTokenFile, "")
		if err != nil {
			return body, err
		}
		body.JoinToken = optional(token.Reveal())
	}
	if d.registryUser != "" {
		password, err := a.secret(ctx, "--registry-password-file", d.passwordFile, "")
		if err != nil {
			return body, err
		}
		body.Registry = &api.RegistryLogin{Username: d.registryUser, Password: password.Reveal()}
	}
	return body, nil
}

// fromInput counts the files that are the standard input.
func (d deployment) fromInput() (n int) {
	for _, file := range []string{d.envFile, d.joinTokenFile, d.passwordFile} {
		if file == "-" {
			n++
		}
	}
	return n
}

// variables are those of the file, and then those of the flags.
func (d deployment) variables(a *app) (map[string]string, error) {
	var text []byte
	if d.envFile != "" {
		var err error
		if text, err = a.readFile("--env-file", d.envFile); err != nil {
			return nil, err
		}
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, "\r\n"); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	found := map[string]string{}
	for _, line := range append(lines, d.env...) {
		name, text, given := strings.Cut(line, "=")
		if !given {
			if text, given = a.env(name); !given {
				return nil, wrong("the variable %s has no value: write it as K=V, or set it here", name) // the name alone: a value may be secret
			}
		}
		found[name] = text
	}
	return found, nil
}
