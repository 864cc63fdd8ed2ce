package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/buildinfo"
	"github.com/cloudfn/cloudfn/shared/domain"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Say whether cloudfn, its database and Keystone answer", Args: cobra.NoArgs,
		Annotations: calls("getStatus"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.newClient(func(context.Context, bool) (domain.Secret, error) { return "", nil }) // it takes no token
			if err != nil {
				return err
			}
			status, err := api.One[api.Status](cmd.Context(), client, "/v1/status", nil)
			if err != nil {
				return err
			}
			if err := output.One(&a.print, status, func(s api.Status) string { return s.Version }, statusColumns); err != nil {
				return err
			}
			if s := status.Value; !s.Postgres.Reachable || !s.Keystone.Reachable {
				return failed{fmt.Errorf("%s does not work: not everything that it needs answers", a.url)}
			}
			if wrong := status.Value.Settings.Wrong; len(wrong) > 0 {
				return failed{fmt.Errorf("%s has wrong settings: `cloudfnd check` with its environment says what is wrong with %s", a.url, strings.Join(wrong, ", "))}
			}
			return nil
		},
	}
}

var statusColumns = []output.Column[api.Status]{
	{Title: "VERSION", Text: func(s api.Status) string { return s.Version }},
	{Title: "FUNCTION", Text: func(s api.Status) string { return s.Function }},
	{Title: "POSTGRES", Text: func(s api.Status) string { return reachable(s.Postgres) }, State: true},
	{Title: "KEYSTONE", Text: func(s api.Status) string { return reachable(s.Keystone) }, State: true},
	{Title: "SETTINGS", Text: func(s api.Status) string { return working(s.Settings) }, State: true},
}

func working(s api.Settings) string {
	switch {
	case len(s.Wrong) > 0:
		return "wrong: " + strings.Join(s.Wrong, ", ")
	case s.CheckedAt == nil:
		return "not checked yet"
	}
	return "up"
}

func reachable(d api.Dependency) string {
	if d.Error != nil {
		return d.Error.Detail
	}
	return "up"
}

func (a *app) loginCommand() *cobra.Command {
	return &cobra.Command{
		Use: "login", Short: "Get a token from Keystone, and say who you are", Args: cobra.NoArgs,
		Long: `Get a fresh token from Keystone and keep it, for this user only, until it ends. Other commands do so by themselves when
there is none; this one is to try a login, or to type a password once.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			user, err := a.user(cmd.Context())
			if err != nil {
				return err
			}
			s, err := user.Fresh(cmd.Context())
			if err != nil {
				return err
			}
			who := s.Who
			_, err = fmt.Fprintf(a.out, "%s in %s at %s, until %s UTC\n", output.Clean(who.UserName), output.Clean(scopedTo(who)), user.IdentityURL(), stamp(who.ExpiresAt))
			return err
		},
	}
}

// scopedTo is what a token is good for.
func scopedTo(who domain.Identity) string {
	switch {
	case who.ProjectID != "":
		return "project " + who.ProjectName
	case who.DomainID != "":
		return "domain " + who.DomainID
	case who.System:
		return "the whole system"
	}
	return "no project (set OS_PROJECT_NAME, or project_name in clouds.yaml)"
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Remove the token that is kept", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			user, err := a.user(cmd.Context())
			if err != nil {
				return err
			}
			return user.Forget()
		},
	}
}

func (a *app) tokenCommand() *cobra.Command {
	return &cobra.Command{
		Use: "token", Short: "Print a token, for curl", Args: cobra.NoArgs,
		Example: `  curl -H "X-Auth-Token: $(cloudfn token)" http://127.0.0.1:8080/v1/servers`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			user, err := a.user(cmd.Context())
			if err != nil {
				return err
			}
			token, err := user.Token(cmd.Context(), false)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.out, token.Reveal())
			return err
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print this program's version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.out, "cloudfn", buildinfo.Version())
			return err
		},
	}
}
