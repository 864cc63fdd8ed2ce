package cli

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

// none takes a limit away.
const none = "none"

// update is what connections update is told.
type update struct {
	name, expires, idle, id, secret string
	actions, usableBy               []string
	quota                           map[string]*string // by its field in the API
	limits                          limits
}

func (a *app) connectionsUpdateCommand() *cobra.Command {
	u := update{quota: map[string]*string{"instances": new(string), "vcpus": new(string), "ram_mb": new(string)}}
	cmd := &cobra.Command{
		Use: "update CONNECTION", Short: "Change a connection behind its id", Args: cobra.ExactArgs(1),
		Long: `Change a connection behind its id. What is not said stays; what is under way goes on with what the connection has then.

A trust that is to last longer is replaced in Keystone with your own login, so only the user who has delegated it can do that. An application
credential is replaced by its secret, which is read from a file, from stdin, or from the terminal, and never from the command line.`,
		Example: `  cloudfn connections update ID --expires 90d --quota-instances 5
  cloudfn connections update ID --quota-vcpus none --idle-timeout none
  cloudfn connections update ID --id CREDENTIAL_ID --secret-file secret`,
		Annotations: calls("changeConnection"), ValidArgsFunction: first(a.complete(a.connectionIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := a.changes(cmd, &u)
			if err != nil {
				return err
			}
			return a.sendConnection(cmd.Context(), http.MethodPatch, args[0], "", body)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&u.name, "name", "", "a name, for you")
	flags.StringVar(&u.expires, "expires", "", "until when: 24h, 30d or a time such as 2027-01-01T00:00:00Z")
	flags.StringVar(&u.idle, "idle-timeout", "", "it also ends when it was not used for as long: 1h to 8784h, or none")
	flags.StringVar(u.quota["instances"], "quota-instances", "", "how many servers at once, or none if they are not to be counted")
	flags.StringVar(u.quota["vcpus"], "quota-vcpus", "", "how many vCPUs at once, or none")
	flags.StringVar(u.quota["ram_mb"], "quota-ram-mb", "", "how much memory at once, or none")
	flags.StringSliceVar(&u.actions, "actions", nil, "all that is permitted: "+joined(permissions))
	flags.StringSliceVar(&u.usableBy, "usable-by", nil, `all that may act through it, besides you: ids, or user:NAME, project:NAME; "" is nobody`)
	u.limits.addTo(flags, "none lifts the limit")
	flags.StringVar(&u.id, "id", "", "of an application credential, with its secret: the id of another one")
	flags.StringVar(&u.secret, "secret-file", "", "of an application credential: the file with its secret (- for stdin)")
	fixed := cobra.ShellCompDirectiveNoFileComp
	_ = cmd.RegisterFlagCompletionFunc("actions", cobra.FixedCompletions(permissions, fixed))
	_ = cmd.RegisterFlagCompletionFunc("expires", cobra.FixedCompletions([]string{"1h", "24h", "7d", "30d"}, fixed))
	return cmd
}

// changes is the request of what was told.
func (a *app) changes(cmd *cobra.Command, u *update) (map[string]any, error) {
	changed, body := cmd.Flags().Changed, map[string]any{}
	if changed("expires") {
		until, err := moment(u.expires, a.now())
		if err != nil {
			return nil, err
		}
		body["expires_at"] = until
	}
	for flag, into := range map[string]func(){
		"name": func() { body["name"] = u.name }, "actions": func() { body["actions"] = u.actions },
		"idle-timeout": func() { body["idle_timeout"] = orNone(u.idle) },
	} {
		if changed(flag) {
			into()
		}
	}
	if changed("usable-by") {
		entries, err := a.usableEntries(u.usableBy)
		if err != nil {
			return nil, err
		}
		body["usable_by"] = entries
	}
	if limits := u.limits.changes(changed); len(limits) > 0 {
		body["limits"] = limits
	}
	quota := map[string]any{}
	for field, flag := range map[string]string{"instances": "quota-instances", "vcpus": "quota-vcpus", "ram_mb": "quota-ram-mb"} {
		if !changed(flag) {
			continue
		}
		text := *u.quota[field]
		quota[field] = nil
		if text != none {
			n, err := strconv.Atoi(text)
			if err != nil {
				return nil, wrong("--%s is %q: it must be a whole number, or none", flag, text)
			}
			quota[field] = n
		}
		body["quota"] = quota
	}
	if changed("id") || changed("secret-file") {
		secret, err := a.secret(cmd.Context(), "--secret-file", u.secret, "Secret of the application credential: ")
		if err != nil {
			return nil, err
		}
		body["secret"] = secret.Reveal()
		if changed("id") {
			body["id"] = u.id
		}
	}
	if len(body) == 0 {
		return nil, wrong("nothing is to be changed: %s connections update -h lists what can be", a.name)
	}
	return body, nil
}

// orNone is nil for the word none.
func orNone(text string) any {
	if text == none {
		return nil
	}
	return text
}

// sendConnection changes a connection, and prints it as it is then.
func (a *app) sendConnection(ctx context.Context, method, id, verb string, body any) error {
	client, err := a.api(ctx)
	if err != nil {
		return err
	}
	path := "/v1/connections/" + url.PathEscape(id)
	if verb != "" {
		path += "/" + verb
	}
	now, _, err := api.Send[api.Connection](ctx, client, method, path, body)
	if err != nil {
		return err
	}
	return a.printConnection(now)
}

func (a *app) connectionsSuspendCommand() *cobra.Command {
	return &cobra.Command{
		Use: "suspend CONNECTION", Short: "Have nothing be done through a connection until it is resumed", Args: cobra.ExactArgs(1),
		Long: `Have nothing be done through a connection until it is resumed. What is asked for through it is refused; orders and actions that wait go on
when it is resumed, unless it ends before. Servers stay as they are.`,
		Annotations: calls("suspendConnection"), ValidArgsFunction: first(a.complete(a.connectionIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.sendConnection(cmd.Context(), http.MethodPost, args[0], "suspend", nil)
		},
	}
}

func (a *app) connectionsResumeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "resume CONNECTION", Short: "Have things be done through a connection again", Args: cobra.ExactArgs(1),
		Annotations: calls("resumeConnection"), ValidArgsFunction: first(a.complete(a.connectionIDs)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.sendConnection(cmd.Context(), http.MethodPost, args[0], "resume", nil)
		},
	}
}
