// Package account holds the commands that log in and out.
package account

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/login"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// command is one that needs the user's login.
func command(a *cli.App, use, short string, run func(cmd *cobra.Command, user *login.Login) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			user, err := a.User(cmd.Context())
			if err != nil {
				return err
			}
			return run(cmd, user)
		},
	}
}

// Login gets a token.
func Login(a *cli.App) *cobra.Command {
	cmd := command(a, "login", "Get a token from Keystone, and say who you are",
		func(cmd *cobra.Command, user *login.Login) error {
			if err := a.TextOnly(cmd, "table", "wide"); err != nil {
				return err
			}
			session, err := user.Renew(cmd.Context())
			if err != nil {
				return err
			}
			who := session.Identity
			_, err = fmt.Fprintf(a.Out, "%s in %s at %s, until %s\n", output.Clean(who.UserName),
				output.Clean(scope(who)), user.IdentityURL(), output.Time(who.ExpiresAt))
			return err
		})
	cmd.Long = `Get a fresh token from Keystone and keep it, for this user only, until it expires. Other commands do
so by themselves when they need one; use this one to try a login, or to type a password once.`
	return cmd
}

// scope is what a token is good for.
func scope(who domain.Identity) string {
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

// Logout removes the token.
func Logout(a *cli.App) *cobra.Command {
	return command(a, "logout", "Remove the stored token and names", func(_ *cobra.Command, user *login.Login) error {
		return user.Forget()
	})
}

// Token prints a token.
func Token(a *cli.App) *cobra.Command {
	cmd := command(a, "token", "Print a token, for curl", func(cmd *cobra.Command, user *login.Login) error {
		if err := a.TextOnly(cmd, "table", "wide", "value"); err != nil {
			return err
		}
		token, err := user.Token(cmd.Context(), false)
		if err == nil {
			_, err = fmt.Fprintln(a.Out, token.Reveal())
		}
		return err
	})
	cmd.Example = `  curl -H "X-Auth-Token: $(cloudfn token)" http://127.0.0.1:8080/v1/servers`
	return cmd
}
