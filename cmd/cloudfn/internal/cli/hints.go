package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// otherNames are commands of other tools whose names here are not alike, with the nouns in the singular.
var otherNames = map[string]string{
	"server create": "launch", "server boot": "launch", "boot": "launch", "run": "launch", "server ssh": "ssh",
	"exec": "ssh", "server add volume": "servers attach", "server remove volume": "servers detach",
	"server add floating": "servers attach-ip", "server remove floating": "servers detach-ip",
	"server add": "servers add-interface", "server remove": "servers remove-interface",
	"server image": "servers snapshot", "server event": "servers history", "event": "servers history",
	"server log": "servers console", "log": "servers console", "console": "servers console",
	"compute service": "nodes", "hypervisor": "nodes", "limit": "resources quota",
	"quota": "resources quota", "availability zone": "resources zones", "usage": "stats", "top": "stats",
	"trust": "connections", "reservation": "leases", "stack": "apply", "whoami": "login",
}

// otherVerbs are those of other tools.
var otherVerbs = map[string]string{"describe": "show", "remove": "delete", "edit": "update", "new": "create"}

// Nouns of openstackclient, and what follows them in commands that only it has.
var (
	openstackNouns = strings.Fields(`aggregate container domain flavor image keypair loadbalancer network object port
		project recordset role router secret server share subnet user volume`)
	openstackWords = strings.Fields(`add backup create delete dump evacuate group list migrate migration remove restore
		save set show snapshot type unset`)
)

// unknownCommand is the error for words that are no command of a group: with the command that they mean, if they are
// those of another tool or in another order, or else with the nearest name.
func unknownCommand(group *cobra.Command, words []string) error {
	err := fmt.Errorf("unknown command %q for %q", words[0], group.CommandPath())
	program := group.Root().CommandPath()
	if meant := meantCommands(group, words); len(meant) > 0 {
		for i, one := range meant {
			meant[i] = fmt.Sprintf("%q", program+" "+one)
		}
		return fmt.Errorf("%w; %s %s?", err, didYouMean, strings.Join(meant, " or "))
	}
	var names []string
	for _, sub := range group.Commands() {
		names = append(names, sub.Name())
	}
	if nearest(words[0], names) != "" {
		return suggest(err, words[0], names, "")
	}
	all := fromTop(group, words)
	end := 1
	for end < len(all) && slices.Contains(openstackWords, all[end]) {
		end++
	}
	if end > 1 && slices.Contains(openstackNouns, all[0]) {
		return fmt.Errorf("%w, and cloudfn has no such command: use openstack %s", err, strings.Join(all[:end], " "))
	}
	return err
}

// fromTop are the words from the program on, with the first noun in the singular.
func fromTop(group *cobra.Command, words []string) []string {
	above := strings.Fields(strings.TrimPrefix(group.CommandPath(), group.Root().CommandPath()))
	all := slices.Concat(above, words)
	all[0] = strings.TrimSuffix(all[0], "s")
	return all
}

// meantCommands are the commands that words mean, without the program's name.
func meantCommands(group *cobra.Command, words []string) []string {
	for n := len(words); n > 1; n-- { // floating ip list
		if sub := subcommand(group, strings.Join(words[:n], "-")); sub != nil {
			if under := subcommand(sub, append(words[n:], "")[0]); under != nil {
				sub = under
			}
			return []string{pathOf(sub)}
		}
	}
	all := fromTop(group, words)
	for n := len(all); n > 0; n-- {
		if meant := otherNames[strings.Join(all[:n], " ")]; meant != "" {
			return []string{meant}
		}
	}
	if group.HasParent() {
		return nil
	}
	verb := words[0]
	if other := otherVerbs[verb]; other != "" {
		verb = other
	}
	if len(words) > 1 { // resize server x
		if noun := subcommand(group, words[1]); noun != nil && subcommand(noun, verb) != nil {
			return []string{pathOf(subcommand(noun, verb))}
		}
	}
	if resources := child(group, "resources"); resources != nil && len(words) > 1 && words[1] == "list" {
		if kind := strings.TrimSuffix(verb, "s") + "s"; slices.Contains(resources.ValidArgs, kind) {
			return []string{pathOf(resources) + " " + kind}
		}
	}
	return nounsWith(group, verb)
}

// most is how many commands an error names.
const most = 3

// nounsWith are the commands with the name under nouns, the servers' first: those of other nouns are many.
func nounsWith(root *cobra.Command, verb string) (paths []string) {
	for _, noun := range root.Commands() {
		sub := child(noun, verb)
		switch {
		case sub == nil || noun.Name() == "get" || noun.Name() == "completion":
		case noun.Name() == "servers":
			paths = slices.Insert(paths, 0, pathOf(sub))
		default:
			paths = append(paths, pathOf(sub))
		}
	}
	return paths[:min(len(paths), most)]
}

// subcommand is the command of a group with the name or alias.
func subcommand(group *cobra.Command, name string) *cobra.Command {
	i := slices.IndexFunc(group.Commands(), func(c *cobra.Command) bool { return c.Name() == name || c.HasAlias(name) })
	if i < 0 {
		return nil
	}
	return group.Commands()[i]
}

// pathOf is the path of a command without the program's name.
func pathOf(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().CommandPath()+" ")
}
