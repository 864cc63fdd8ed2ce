package cli

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// delegation is what connections create is told.
type delegation struct {
	request                    api.ConnectionRequest
	kind, expires, secret      string
	actions, roles, usableBy   []string
	instances, vcpus, ram      int
	id, authURL, region, label string
	idle                       string
	limits                     limits
}

func (a *app) connectionsCreateCommand() *cobra.Command {
	var d delegation
	cmd := &cobra.Command{
		Use: "create --kind KIND --actions ACTIONS --expires WHEN", Short: "Delegate", Args: cobra.NoArgs,
		Long: `Delegate: let others act in your project, for some actions, up to a quota, until a time.

A trust is made in Keystone with your own login. An application credential is one that you have made; its secret is read from a
file, from stdin, or from the terminal, and never from the command line.`,
		Example: `  cloudfn connections create --kind trust --name "build machines" --actions allocate,start,stop --quota-instances 3 --usable-by USER_ID --expires 24h
  cloudfn connections create --kind application_credential --id ID --secret-file secret --actions allocate,deallocate --expires 2027-01-01T00:00:00Z
  cloudfn connections create --kind trust --actions allocate,start --flavor m1.small --network NETWORK_ID --usable-by project:web --expires 7d`,
		Annotations: calls("createConnection"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.delegate(cmd, &d); err != nil {
				return err
			}
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			made, _, err := api.Send[api.Connection](cmd.Context(), client, http.MethodPost, "/v1/connections", d.request)
			if err != nil {
				return err
			}
			return a.printConnection(made)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&d.kind, "kind", "", "trust or application_credential")
	flags.StringVar(&d.label, "name", "", "a name, for you")
	flags.StringSliceVar(&d.actions, "actions", nil, "what is permitted: "+strings.Join(permissions, ", "))
	flags.StringVar(&d.expires, "expires", "", "until when: 24h, 30d or a time such as 2027-01-01T00:00:00Z")
	flags.StringVar(&d.idle, "idle-timeout", "", "it also ends when it was not used for as long: 1h to 8784h")
	flags.StringSliceVar(&d.roles, "role", nil, "of a trust: which of your roles (default member)")
	flags.StringVar(&d.id, "id", "", "of an application credential: its id")
	flags.StringVar(&d.secret, "secret-file", "", "of an application credential: the file with its secret (- for stdin)")
	flags.StringVar(&d.authURL, "auth-url", "", "of an application credential of another cloud: its Keystone")
	flags.StringVar(&d.region, "region", "", "of an application credential: the region to act in")
	flags.IntVar(&d.instances, "quota-instances", 0, "how many servers at once (default any number)")
	flags.IntVar(&d.vcpus, "quota-vcpus", 0, "how many vCPUs at once")
	flags.IntVar(&d.ram, "quota-ram-mb", 0, "how much memory at once")
	flags.StringSliceVar(&d.usableBy, "usable-by", nil, "who may act through it, besides you: ids of users and projects, or user:NAME, project:NAME, user:DOMAIN/NAME")
	d.limits.addTo(flags)
	for _, flag := range []string{"kind", "actions", "expires"} {
		_ = cmd.MarkFlagRequired(flag)
	}
	fixed := cobra.ShellCompDirectiveNoFileComp
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]string{"trust", "application_credential"}, fixed))
	_ = cmd.RegisterFlagCompletionFunc("actions", cobra.FixedCompletions(permissions, fixed))
	_ = cmd.RegisterFlagCompletionFunc("expires", cobra.FixedCompletions([]string{"1h", "24h", "7d", "30d"}, fixed))
	return cmd
}

// delegate makes the request of what was told.
func (a *app) delegate(cmd *cobra.Command, d *delegation) error {
	until, err := moment("--expires", d.expires, a.now())
	if err != nil {
		return err
	}
	changed := cmd.Flags().Changed
	r := &d.request
	r.Kind, r.ExpiresAt = api.ConnectionKind(d.kind), until
	for _, action := range d.actions {
		r.Actions = append(r.Actions, api.Permission(action))
	}
	for flag, into := range map[string]func(){
		"name": func() { r.Name = &d.label }, "idle-timeout": func() { r.IdleTimeout = &d.idle }, "role": func() { r.Roles = &d.roles },
		"id": func() { r.ID = &d.id }, "auth-url": func() { r.AuthURL = &d.authURL }, "region": func() { r.Region = &d.region },
	} {
		if changed(flag) {
			into()
		}
	}
	if changed("usable-by") {
		if r.UsableBy, err = a.usableEntries(d.usableBy); err != nil {
			return err
		}
	}
	r.Limits = d.limits.request()
	var q api.ConnectionQuota
	for flag, into := range map[string]func(){
		"quota-instances": func() { q.Instances = &d.instances }, "quota-vcpus": func() { q.Vcpus = &d.vcpus }, "quota-ram-mb": func() { q.RAMMb = &d.ram },
	} {
		if changed(flag) {
			into()
			r.Quota = &q
		}
	}
	if r.Kind != api.ApplicationCredential && !changed("secret-file") {
		return nil
	}
	secret, err := a.secret(cmd.Context(), "--secret-file", d.secret, "Secret of the application credential: ")
	if secret != "" {
		text := secret.Reveal()
		r.Secret = &text
	}
	return err
}

// secret reads a secret from a file, from stdin, or from the terminal. A line break at its end is none of it.
func (a *app) secret(ctx context.Context, flag, file, prompt string) (domain.Secret, error) {
	if file == "" {
		ask := a.asker(ctx)
		if ask == nil {
			return "", wrong("%s is missing: it names the file with the secret (- for stdin)", flag)
		}
		text, err := ask(prompt)
		if err != nil {
			return "", wrong("%s is missing: %w", flag, err)
		}
		return domain.Secret(text), nil
	}
	text, err := a.readFile(flag, file)
	if err != nil {
		return "", err
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", wrong("%s: %s is empty", flag, file)
	}
	return domain.Secret(secret), nil
}

// moment is a time, or how far it is ahead.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.UTC(), nil
	}
	d, ok := span(text)
	if !ok || d == 0 {
		return time.Time{}, wrong("%s is %q: it must be how long, such as 24h or 30d, or a time such as 2027-01-01T00:00:00Z", flag, text)
	}
	return now.Add(d).UTC().Truncate(time.Second), nil
}

// itemsOf are things that came within something else.
func itemsOf[T any](all []T) ([]api.Item[T], error) {
	items := make([]api.Item[T], len(all))
	for n, one := range all {
		raw, err := json.Marshal(one)
		if err != nil {
			return nil, err
		}
		items[n] = api.Item[T]{Value: one, Raw: raw}
	}
	return items, nil
}

// joined are words of some kind, separated by commas.
func joined[T ~string](all []T) string {
	texts := make([]string, len(all))
	for n, one := range all {
		texts[n] = string(one)
	}
	return strings.Join(texts, ",")
}
