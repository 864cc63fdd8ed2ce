package cli

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

var idForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// awkward says whether a name is more than one word to a shell or to xargs, or looks like a flag.
func awkward(name string) bool {
	return strings.HasPrefix(name, "-") || strings.ContainsAny(name, `"'\`) || strings.ContainsFunc(name, unicode.IsSpace)
}

// isID says whether a text is an id. What looks like one is never taken for a name.
func isID(text string) bool { return idForm.MatchString(text) }

// target is a server that the user has named.
type target struct {
	given string
	id    string
	err   error // why it is none
}

// resolve finds what is meant. Ids are taken as they are: the API knows best whether there is such a server.
func (s *servers) resolve(ctx context.Context, client *api.Client, args []string) ([]target, error) {
	names := slices.DeleteFunc(slices.Clone(args), isID)
	if slices.Contains(names, "") {
		return nil, wrong("a server's name is empty")
	}
	var known []api.Item[api.Server]
	var err error
	switch {
	case len(names) == 1:
		known, err = s.find(ctx, client, filter{name: names[0]})
	case len(names) > 1:
		known, err = s.find(ctx, client, filter{})
	}
	if err != nil {
		return nil, err
	}
	var targets []target
	for _, arg := range args {
		t := target{given: arg, id: strings.ToLower(arg)}
		if !isID(arg) {
			t.id, t.err = named(known, arg)
		}
		if t.err != nil || !slices.ContainsFunc(targets, func(other target) bool { return other.err == nil && other.id == t.id }) {
			targets = append(targets, t)
		}
	}
	return targets, nil
}

// named is the id of the only server of the name.
func named(known []api.Item[api.Server], name string) (string, error) {
	var ids []string
	for _, one := range known {
		if one.Value.Name == name {
			ids = append(ids, one.Value.ID)
		}
	}
	switch len(ids) {
	case 0:
		return "", absent{fmt.Errorf("there is no server %q", name)}
	case 1:
		return ids[0], nil
	}
	return "", conflict{fmt.Errorf("%d servers are named %q: give one of the ids %s", len(ids), name, strings.Join(ids, ", "))}
}

func (s *servers) resolveOne(ctx context.Context, client *api.Client, arg string) (target, error) {
	targets, err := s.resolve(ctx, client, []string{arg})
	if err != nil {
		return target{}, err
	}
	return targets[0], targets[0].err
}

// completeServers offers names, and ids where something of one is there already or the name is not enough. most is how many
// servers the command takes (0 = any number).
func (s *servers) completeServers(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		offer := s.complete(func(ctx context.Context) ([]string, error) {
			client, err := s.api(ctx)
			if err != nil {
				return nil, err
			}
			found, err := s.find(ctx, client, filter{})
			if err != nil {
				return nil, err
			}
			return offers(found, args, begun), nil
		})
		return offer(cmd, args, begun)
	}
}

func offers(found []api.Item[api.Server], given []string, begun string) []string {
	var texts []string
	call := handle(found)
	for _, one := range found {
		name, server := call(one.Value), one.Value
		if slices.Contains(given, name) || slices.Contains(given, server.ID) {
			continue
		}
		if name != server.ID {
			texts = append(texts, name+"\t"+strings.ToLower(server.Status))
		}
		if name == server.ID || begun != "" {
			texts = append(texts, server.ID+"\t"+server.Name+" "+strings.ToLower(server.Status))
		}
	}
	return texts
}

// usableConnections are the ids of the connections that the user may act through.
func (a *app) usableConnections(ctx context.Context) ([]string, error) {
	client, err := a.api(ctx)
	if err != nil {
		return nil, err
	}
	found, err := api.List[api.Connection](ctx, client, "/v1/connections", map[string][]string{"usable": {"true"}}, "connections", 0)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, one := range found {
		ids = append(ids, one.Value.ID+"\t"+string(one.Value.Kind)+" "+string(one.Value.Status))
	}
	return ids, nil
}
