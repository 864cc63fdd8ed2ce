package connections

import (
	"context"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

const expiresUsage = "until when: 24h, 30d or a time such as 2027-01-01T00:00:00Z"

func create(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create --kind KIND --actions ACTIONS --expires WHEN", Short: "Delegate", Args: cobra.NoArgs,
		Long: `Delegate: let others act in your project, for some actions, up to a quota, until a time.

cloudfn makes a trust in Keystone with your own login. You make an application credential yourself; its secret is read
from a file, from stdin, or from the terminal, and never from the command line.`,
		Example: `  cloudfn connections create --kind trust --name "build machines" --actions allocate,start,stop \
    --quota-instances 3 --usable-by USER_ID --expires 24h
  cloudfn connections create --kind application_credential --id ID --secret-file secret \
    --actions allocate,deallocate --expires 2027-01-01T00:00:00Z
  cloudfn connections create --kind trust --actions allocate,start --flavor m1.small --network NETWORK_ID \
    --usable-by project:web --expires 7d`,
		Annotations: cli.Calls("createConnection"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := delegation(a, cmd)
			if err != nil {
				return err
			}
			return connections.SendOnce(cmd.Context(), a, connections.Path, body)
		},
	}
	cmd.Flags().String("name", "", "a name, for you")
	actionsFlag(cmd, "what is permitted: ")
	a.Until(cmd, "expires", expiresUsage)
	delegationFlags(cmd, "")
	quotaFlags(cmd.Flags(), "default any number")
	cmd.Flags().StringSlice("usable-by", nil,
		"who may use it, besides you: ids of users and projects, or user:NAME, project:NAME, user:DOMAIN/NAME")
	limitFlags(cmd.Flags(), "default any")
	for _, flag := range []string{"kind", "actions", "expires"} {
		_ = cmd.MarkFlagRequired(flag)
	}
	return cmd
}

func update(a *cli.App) *cobra.Command {
	cmd := connections.One(a, "update", "Change a connection behind its id", "changeConnection",
		func(cmd *cobra.Command, id string) error {
			body := cli.Body(cmd.Flags(), fields...)
			addUsableBy(a, cmd, body)
			if cmd.Flags().Changed("id") || cmd.Flags().Changed("secret-file") {
				if err := addSecret(a, cmd, body); err != nil {
					return err
				}
			}
			if len(body) == 0 {
				return exit.Usagef("nothing is to be changed: %s connections update -h lists flags", a.Name)
			}
			return connections.Send(cmd.Context(), a, http.MethodPatch, connections.URL(id), body)
		})
	cmd.Long = `Change a connection behind its id. Without a flag a field stays as it is. Pending orders and actions
continue with the new values.

A trust that is to last longer is replaced in Keystone with your own login, so only the user who delegated it can do
that. An application credential is replaced by its secret, which is read from a file, from stdin, or from the
terminal, and never from the command line.`
	cmd.Example = `  cloudfn connections update ID --expires 90d --quota-instances 5
  cloudfn connections update ID --quota-vcpus none --idle-timeout none
  cloudfn connections update ID --id CREDENTIAL_ID --secret-file secret`
	flags := cmd.Flags()
	flags.String("name", "", "a name, for you")
	a.Until(cmd, "expires", expiresUsage)
	flags.String("idle-timeout", "", "it also ends when it was not used for as long: 1h to 8784h, or none")
	quotaFlags(flags, "or none")
	actionsFlag(cmd, "all that is permitted: ")
	flags.StringSlice("usable-by", nil,
		`all that may act through it, besides you: ids, or user:NAME, project:NAME; "" is nobody`)
	limitFlags(flags, "none lifts the limit")
	flags.String("id", "", "of an application credential, with its secret: the id of another one")
	cli.SecretFileFlag(cmd, "of an application credential: the file with its secret (- for stdin)")
	cli.OrNone(flags, "idle-timeout", "quota-instances", "quota-vcpus", "quota-ram-mb", "image", "network", "flavor",
		"only-region")
	return cmd
}

func remove(a *cli.App) *cobra.Command {
	cmd := connections.Each(a, "delete", "End connections, and revoke what they delegate", "deleteConnection",
		func(ctx context.Context, id string) error { return end(ctx, a, id) })
	cmd.Annotations = cli.Calls("deleteConnection", "getConnection")
	cmd.Long = "End connections, and revoke what they delegate. Servers that were launched through them stay."
	return cmd
}

// end deletes a connection, and says what is left of it.
func end(ctx context.Context, a *cli.App, id string) error {
	found, err := api.Get[api.Connection](ctx, a.API(), connections.URL(id), nil)
	if err != nil {
		return err
	}
	if err := a.API().Do(ctx, http.MethodDelete, connections.URL(id), nil, nil); err != nil {
		return err
	}
	c := found.Value
	a.Notef("Connection %s has ended: nobody acts through it any more.", c.ID)
	if n := c.Used.Instances; n > 0 {
		a.Notef("What ran through it stays in project %s, where %s servers list shows it: %s.",
			c.ProjectID, a.Name, output.Count(n, "server"))
	}
	if c.Kind == api.ApplicationCredential {
		a.Notef("The application credential stays in Keystone: delete it with openstack application credential delete.")
		return nil
	}
	ended, err := api.Get[api.Connection](ctx, a.API(), connections.URL(id), nil)
	if err != nil {
		return err
	}
	if cli.Value(ended.Value.Revocation) == api.RevocationDone {
		a.Notef("The trust is gone from Keystone.")
		return nil
	}
	a.Notef("Keystone has the trust until %s at the latest: %s connections show %s says when it is gone.",
		output.Time(cli.Value(ended.Value.TrustExpiresAt)), a.Name, c.ID)
	return nil
}

var checkTable = output.Table[api.ConnectionCheck]{
	Columns: []string{"ID", "WORKS", "STATUS*", "REASON", "ROLES", "ENDS:ends_at", "CHECKED:checked_at"},
	Texts: map[string]func(api.ConnectionCheck) string{
		"WORKS": works,
		"ROLES": func(c api.ConnectionCheck) string { return strings.Join(c.Roles, ", ") },
	},
}

func works(c api.ConnectionCheck) string {
	switch {
	case c.Works == nil:
		return "unknown"
	case *c.Works:
		return "yes"
	}
	return "no"
}

func check(a *cli.App) *cobra.Command {
	cmd := connections.One(a, "check", "Ask Keystone whether a connection still works", "checkConnection",
		func(cmd *cobra.Command, id string) error {
			path := connections.URL(id, "check")
			check, err := api.Send[api.ConnectionCheck](cmd.Context(), a.API(), http.MethodPost, path, nil)
			if err != nil {
				return err
			}
			err = output.One(&a.Print, check, checkTable)
			switch c := check.Value; {
			case err != nil || cli.Value(c.Works):
				return err
			case c.Works == nil:
				return exit.Failedf("there was no answer in time: check again")
			default:
				return exit.Failedf("the connection does not work: it is %s", c.Status)
			}
		})
	cmd.Long = `Ask Keystone whether it still accepts what was delegated, and show with which roles and until when.

The exit code is 0 when the connection works; 1 when it does not, or when there was no answer in time; 6 when its
cloud does not answer.`
	return cmd
}
