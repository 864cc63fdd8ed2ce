package nodes

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/leases"
)

// change sends what is to change of a node: what is absent stays, and null resets it.
func change(cmd *cobra.Command, a *cli.App, name string, patch map[string]any) error {
	changed, err := api.Send[api.Node](cmd.Context(), a.API(), http.MethodPatch, noun.URL(name), patch)
	if err != nil {
		return err
	}
	return printOne(a, changed)
}

func label(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use: "label NODE KEY=VALUE... KEY-...", Short: "Set the labels of a host, and remove them by KEY-",
		Example: "  cloudfn nodes label compute-1 rack=r1 disk-", Args: cobra.MinimumNArgs(2),
		Annotations: cli.Calls("changeNode"), ValidArgsFunction: a.Complete(1, noun.Finder(a, nil, 0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			labels := map[string]any{}
			for _, arg := range args[1:] {
				key, value, isSet := strings.Cut(arg, "=")
				if without, ok := strings.CutSuffix(arg, "-"); ok && !isSet && without != "" {
					labels[without] = nil
					continue
				}
				if !isSet || key == "" {
					return exit.Usagef("%q is no label: it must be KEY=VALUE, or KEY- to remove it", arg)
				}
				labels[key] = value
			}
			err := change(cmd, a, args[0], map[string]any{"labels": labels})
			return noun.Near(cmd.Context(), a, args[0], err)
		},
	}
}

func update(a *cli.App) *cobra.Command {
	cmd := noun.One(a, "update", "Change what is set of a host", "changeNode",
		func(cmd *cobra.Command, name string) error {
			if cmd.Flags().NFlag() == 0 {
				return exit.Usagef("nothing is to be changed: %s nodes update -h lists flags", a.Name)
			}
			patch, err := patchOf(cmd.Flags())
			if err != nil {
				return err
			}
			return change(cmd, a, name, patch)
		})
	cmd.Long = `Change what is set of a host. Without a flag a field stays as it is; an empty text removes it.

--auto-cordon-after cordons the host after it has been suspect or down for so long, and --auto-drain-after moves its
servers off
after it has been suspect or cordoned for so long. A host that is down is never drained.`
	cmd.Example = "  cloudfn nodes update compute-1 --region-zone hall-2 --auto-cordon-after 10m --alert=false"
	flags := cmd.Flags()
	flags.String("region-zone", "", "where it is")
	flags.String("network-zone", "", "where it is in the network")
	flags.StringSlice("provider", nil, "what runs on it besides Nova's hypervisor")
	flags.String("status-url", "", "what is requested while it is not up")
	flags.Bool("alert", true, "whether its changes are events")
	flags.String("auto-cordon-after", "", "suspect or down for so long: 10m, 2h, 1d, or none")
	flags.String("auto-drain-after", "", "suspect or cordoned for so long: 10m, 2h, 1d, or none")
	for _, flag := range []string{"region-zone", "network-zone", "provider", "status-url"} {
		cli.Choices(cmd, flag)
	}
	for _, flag := range []string{"auto-cordon-after", "auto-drain-after"} {
		cli.Choices(cmd, flag, "10m", "1h", "1d", "none")
	}
	return cmd
}

// patchOf is what the flags change. An empty text resets a field.
func patchOf(flags *pflag.FlagSet) (map[string]any, error) {
	patch := cli.Body(flags, "region-zone", "network-zone", "status-url", "auto-cordon-after", "auto-drain-after",
		"alert")
	for key, value := range patch {
		text, isText := value.(string)
		if flag := strings.ReplaceAll(key, "_", "-"); strings.HasPrefix(key, "auto_") {
			period, err := periodOf(flag, text)
			if err != nil {
				return nil, err
			}
			text, patch[key] = period, period
		}
		if isText && text == "" {
			patch[key] = nil
		}
	}
	if flags.Changed("provider") {
		patch["providers"], _ = flags.GetStringSlice("provider")
	}
	return patch, nil
}

// periodOf is a duration as ISO 8601 has it; none and an empty text give none.
func periodOf(flag, text string) (string, error) {
	if text == "" || text == "none" {
		return "", nil
	}
	period, err := leases.ParsePeriod(text)
	if err != nil {
		return "", exit.Usagef("--%s: %w", flag, err)
	}
	return period.String(), nil
}

func token(a *cli.App) *cobra.Command {
	cmd := noun.One(a, "token", "Make the token of a host's agent, or revoke it", "createNodeToken",
		func(cmd *cobra.Command, name string) error {
			path := noun.URL(name, "token")
			if isRevoked, _ := cmd.Flags().GetBool("revoke"); isRevoked {
				return a.API().Do(cmd.Context(), http.MethodDelete, path, nil, nil)
			}
			made, err := api.Send[api.NodeToken](cmd.Context(), a.API(), http.MethodPost, path, nil)
			if err == nil {
				_, err = fmt.Fprintln(a.Out, made.Value.Token)
			}
			return err
		})
	cmd.Annotations = cli.Calls("createNodeToken", "revokeNodeToken")
	cmd.Long = `Make the token with which an agent of your own reports how a host is, in the place of the one before.
It is printed this once. The agent sends it as Authorization: Bearer to POST /v1/nodes/NODE/heartbeat. What it
reports counts while it is fresh; nova-compute's own reports count all the same.`
	cmd.Example = "  cloudfn nodes token compute-1 > compute-1.token\n  cloudfn nodes token compute-1 --revoke"
	cmd.Flags().Bool("revoke", false, "revoke it, and make no other")
	return cmd
}
