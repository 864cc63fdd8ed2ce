package cli

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// shortNames are what get takes for long nouns.
var shortNames = map[string]string{
	"callbacks": "cb", "connections": "conn", "floating-ips": "fip", "images": "img", "keypairs": "key",
	"networks": "net", "nodes": "no", "orders": "ord", "security-groups": "sg", "servers": "srv", "volumes": "vol",
}

// completeGet adds to the command get what lists and shows the other nouns, for those who know kubectl: get servers is
// servers list, and get server NAME is servers show NAME. kinds are those of resources.
func completeGet(root *cobra.Command) {
	get, resources := child(root, "get"), child(root, "resources")
	if get == nil {
		return
	}
	for _, noun := range root.Commands() {
		list, isOfAPI := child(noun, "list"), noun.Name() != "config"
		if list != nil && isOfAPI && child(get, noun.Name()) == nil {
			get.AddCommand(getNoun(noun, list, child(noun, "show")))
		}
	}
	if resources == nil {
		return
	}
	run := resources.RunE // before it is watched
	for _, kind := range resources.ValidArgs {
		if known, _, _ := get.Find([]string{kind}); known != get || kind == "security_groups" {
			continue
		}
		one := &cobra.Command{
			Use: kind, Short: "List the " + kind + " to launch with", Args: cobra.NoArgs, Aliases: aliases(kind, nil),
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return run(cmd, []string{kind}) },
		}
		one.Flags().AddFlagSet(resources.Flags())
		get.AddCommand(one)
	}
}

func child(cmd *cobra.Command, name string) *cobra.Command {
	if i := slices.IndexFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == name }); i >= 0 {
		return cmd.Commands()[i]
	}
	return nil
}

// aliases adds the singular and the short name of a noun.
func aliases(noun string, others []string) []string {
	all := slices.Clone(others)
	if singular := noun[:len(noun)-1]; noun[len(singular):] == "s" && !slices.Contains(all, singular) {
		all = append(all, singular)
	}
	if short := shortNames[noun]; short != "" {
		all = append(all, short)
	}
	return all
}

// getNoun lists a noun, or shows the one that is named, with the flags of those commands. show may be nil.
func getNoun(noun, list, show *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: noun.Name(), Short: list.Short, Args: cobra.NoArgs, Aliases: aliases(noun.Name(), noun.Aliases),
		ValidArgsFunction: cobra.NoFileCompletions, PreRunE: list.PreRunE,
	}
	cmd.Flags().AddFlagSet(noun.PersistentFlags())
	cmd.Flags().AddFlagSet(list.Flags())
	runList := list.RunE // before they are watched
	runShow := runList
	if show != nil {
		cmd.Use, cmd.Short, cmd.Args = cmd.Use+" [NAME]", cmd.Short+"; or show one", cobra.MaximumNArgs(1)
		cmd.ValidArgsFunction, runShow = show.ValidArgsFunction, show.RunE
		cmd.Flags().AddFlagSet(show.Flags())
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		as, run := list, runList
		if len(args) > 0 {
			as, run = show, runShow
		}
		var foreign string
		cmd.Flags().Visit(func(f *pflag.Flag) {
			isOwn := f == as.Flags().Lookup(f.Name) || f == noun.PersistentFlags().Lookup(f.Name) ||
				f == cmd.InheritedFlags().Lookup(f.Name) || f.Name == "format"
			if !isOwn {
				foreign = f.Name
			}
		})
		if foreign != "" {
			return exit.Usagef("--%s does nothing here: see %s --help", foreign, as.CommandPath())
		}
		return run(cmd, args)
	}
	return cmd
}
