package cli

import (
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

// quotaFlags are how much may run through a connection.
type quotaFlags struct{ instances, vcpus, ram int }

func (q *quotaFlags) add(cmd *cobra.Command, otherwise string) {
	flags := cmd.Flags()
	flags.IntVar(&q.instances, "quota-instances", 0, "how many servers at once (default "+otherwise+")")
	flags.IntVar(&q.vcpus, "quota-vcpus", 0, "how many vCPUs at once")
	flags.IntVar(&q.ram, "quota-ram-mb", 0, "how much memory at once")
}

// quota has what was given; nil = nothing.
func (q *quotaFlags) quota(cmd *cobra.Command) *api.ConnectionQuota {
	var quota api.ConnectionQuota
	given := false
	for flag, into := range map[string]func(){
		"quota-instances": func() { quota.Instances = &q.instances }, "quota-vcpus": func() { quota.Vcpus = &q.vcpus }, "quota-ram-mb": func() { quota.RAMMb = &q.ram },
	} {
		if cmd.Flags().Changed(flag) {
			into()
			given = true
		}
	}
	if !given {
		return nil
	}
	return &quota
}

func (a *app) consentCreateCommand() *cobra.Command {
	var quota quotaFlags
	var limited limits
	var actions []string
	var request api.ConsentRequest
	var expires, label, grantee string
	cmd := &cobra.Command{
		Use: "create --project PROJECT_ID --why TEXT --actions ACTIONS --expires WHEN", Short: "Ask a project for a connection", Args: cobra.NoArgs,
		Long: `Ask the users of a project for a connection. They see who asks and why, and grant it, or less, or decline it.

That the project exists is not checked. After 14 days without a decision the request expires.`,
		Example: `  cloudfn connections requests create --project 0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e --why "builds at night" --actions allocate,deallocate \
    --quota-instances 3 --expires 30d`,
		Annotations: calls("requestConnection"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if d, ok := span(expires); ok && d > 0 {
				duration := d.String()
				request.Duration = &duration
			} else {
				until, err := moment(expires, a.now())
				if err != nil {
					return err
				}
				request.ExpiresAt = &until
			}
			for _, action := range actions {
				request.Actions = append(request.Actions, api.Permission(action))
			}
			request.Limits = limited.request()
			if request.Quota = quota.quota(cmd); label != "" {
				request.Name = &label
			}
			if grantee != "" {
				given := api.ConsentFor(grantee)
				request.For = &given
			}
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			made, _, err := api.Send[api.Consent](cmd.Context(), client, http.MethodPost, consentPath, request)
			if err != nil {
				return err
			}
			return a.printConsent(made)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.ProjectID, "project", "", "the id of the project that is asked, whose servers these will be")
	flags.StringVar(&request.Why, "why", "", "what the connection is for: its users read it")
	flags.StringSliceVar(&actions, "actions", nil, "what is to be permitted: "+joined(permissions))
	flags.StringVar(&expires, "expires", "", "for how long from the grant on, such as 30d, or until when, such as 2027-01-01T00:00:00Z")
	flags.StringVar(&label, "name", "", "a name for the connection")
	flags.StringVar(&grantee, "for", "", "who may act through it: user (you) or project (yours; default user)")
	quota.add(cmd, "any number")
	limited.addTo(flags, "default any")
	for _, flag := range []string{"project", "why", "actions", "expires"} {
		_ = cmd.MarkFlagRequired(flag)
	}
	fixed := cobra.ShellCompDirectiveNoFileComp
	_ = cmd.RegisterFlagCompletionFunc("actions", cobra.FixedCompletions(permissions, fixed))
	_ = cmd.RegisterFlagCompletionFunc("for", cobra.FixedCompletions([]string{"user", "project"}, fixed))
	_ = cmd.RegisterFlagCompletionFunc("expires", cobra.FixedCompletions([]string{"24h", "7d", "30d"}, fixed))
	return cmd
}

// consentGrant is what the flags of grant say.
type consentGrant struct {
	quota  quotaFlags
	limits limits

	actions, roles                                          []string
	kind, expires, label, idle, id, secret, authURL, region string
}

func (a *app) consentGrantCommand() *cobra.Command {
	var g consentGrant
	cmd := &cobra.Command{
		Use: "grant REQUEST", Short: "Grant a request for a connection, or less than it asks for", Args: cobra.ExactArgs(1),
		Long: `Grant a request: make the connection that it asks for. What no flag says is granted as it is asked for. More than that is refused.

It is made by a trust with your own login, or with an application credential of yours (--kind application_credential).`,
		Example: `  cloudfn connections requests grant REQUEST
  cloudfn connections requests grant REQUEST --actions allocate --quota-instances 1 --expires 7d`,
		Annotations: calls("grantConnectionRequest"), ValidArgsFunction: first(a.complete(a.consentIDs(true))),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := a.granted(cmd, &g)
			if err != nil {
				return err
			}
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			made, _, err := api.Send[api.Connection](cmd.Context(), client, http.MethodPost, consentPath+"/"+url.PathEscape(args[0])+"/grant", request)
			if err != nil {
				return err
			}
			return a.printConnection(made)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&g.kind, "kind", "", "trust or application_credential (default trust)")
	flags.StringVar(&g.label, "name", "", "another name, for you")
	flags.StringSliceVar(&g.actions, "actions", nil, "only these of the actions that are asked for")
	flags.StringVar(&g.expires, "expires", "", "until when, if earlier than asked for: 24h, 30d or a time such as 2027-01-01T00:00:00Z")
	flags.StringVar(&g.idle, "idle-timeout", "", "it also ends when it was not used for as long: 1h to 8784h")
	flags.StringSliceVar(&g.roles, "role", nil, "of a trust: which of your roles (default member)")
	flags.StringVar(&g.id, "id", "", "of an application credential: its id")
	flags.StringVar(&g.secret, "secret-file", "", "of an application credential: the file with its secret (- for stdin)")
	flags.StringVar(&g.authURL, "auth-url", "", "of an application credential of another cloud: its Keystone")
	flags.StringVar(&g.region, "region", "", "of an application credential: the region to act in")
	g.quota.add(cmd, "as many as asked for")
	g.limits.addTo(flags, "default as asked for")
	fixed := cobra.ShellCompDirectiveNoFileComp
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]string{"trust", "application_credential"}, fixed))
	_ = cmd.RegisterFlagCompletionFunc("actions", cobra.FixedCompletions(permissions, fixed))
	_ = cmd.RegisterFlagCompletionFunc("expires", cobra.FixedCompletions([]string{"1h", "24h", "7d", "30d"}, fixed))
	return cmd
}

// granted is the request that the flags make. It reads the secret, if there is to be one.
func (a *app) granted(cmd *cobra.Command, g *consentGrant) (request api.ConsentGrant, err error) {
	request.Quota, request.Limits = g.quota.quota(cmd), g.limits.request()
	changed := cmd.Flags().Changed
	if changed("expires") {
		until, err := moment(g.expires, a.now())
		if err != nil {
			return request, err
		}
		request.ExpiresAt = &until
	}
	if changed("actions") {
		given := make([]api.Permission, len(g.actions))
		for n, action := range g.actions {
			given[n] = api.Permission(action)
		}
		request.Actions = &given
	}
	for flag, into := range map[string]func(){
		"kind": func() { given := api.ConnectionKind(g.kind); request.Kind = &given }, "name": func() { request.Name = &g.label },
		"role": func() { request.Roles = &g.roles }, "idle-timeout": func() { request.IdleTimeout = &g.idle },
		"id": func() { request.ID = &g.id }, "auth-url": func() { request.AuthURL = &g.authURL }, "region": func() { request.Region = &g.region },
	} {
		if changed(flag) {
			into()
		}
	}
	if g.kind != string(api.ApplicationCredential) && !changed("secret-file") {
		return request, nil
	}
	read, err := a.secret(cmd.Context(), "--secret-file", g.secret, "Secret of the application credential: ")
	text := read.Reveal()
	request.Secret = &text
	return request, err
}
