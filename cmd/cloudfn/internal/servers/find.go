package servers

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// filter says which servers are wanted.
type filter struct {
	statuses  []string
	name      string // a part of it
	isTracked *bool  // nil = whether or not
}

// find lists servers. The API filters as far as it can, and find does the rest.
func (s *servers) find(ctx context.Context, f filter) ([]api.Item[api.Server], error) {
	query := cli.ConnectionQuery(s.connection)
	if s.connection == "" {
		query = url.Values{}
		if f.name != "" {
			query.Set("name", f.name)
		}
		if len(f.statuses) == 1 {
			query.Set("status", f.statuses[0])
		}
		if f.isTracked != nil {
			query.Set("tracked", strconv.FormatBool(*f.isTracked))
		}
	}
	return api.List[api.Server]{Path: "/v1/servers", Key: "servers", Query: query, Keep: func(found api.Server) bool {
		return (len(f.statuses) == 0 || slices.Contains(f.statuses, found.Status)) &&
			strings.Contains(strings.ToLower(found.Name), strings.ToLower(f.name)) &&
			(f.isTracked == nil || *f.isTracked == (found.Instance != nil))
	}}.Read(ctx, s.API())
}

// names gives what other commands take for a server: its name where that is enough, else its id.
func names(all []api.Item[api.Server]) func(api.Server) string {
	count := map[string]int{}
	for _, item := range all {
		count[item.Value.Name]++
	}
	return func(s api.Server) string {
		if s.Name == "" || count[s.Name] > 1 || cli.IsID(s.Name) || needsQuotes(s.Name) {
			return s.ID
		}
		return s.Name
	}
}

// needsQuotes reports whether a terminal, a shell or xargs would split or change a name, or a command take it for a
// flag.
func needsQuotes(name string) bool {
	return strings.HasPrefix(name, "-") || strings.ContainsAny(name, `"'\`) ||
		strings.ContainsFunc(name, unicode.IsSpace) || output.Clean(name) != name
}

// target is a server that the user has given by name or id.
type target struct {
	given string
	id    string
	err   error // why it was not found
}

// resolve finds the ids of servers. It takes ids as they are: the API knows whether there is such a server.
func (s *servers) resolve(ctx context.Context, args []string) ([]target, error) {
	names := slices.DeleteFunc(slices.Clone(args), cli.IsID)
	if slices.Contains(names, "") {
		return nil, exit.Usagef("a server's name is empty")
	}
	var known []api.Item[api.Server]
	var err error
	switch {
	case len(names) == 1:
		known, err = s.find(ctx, filter{name: names[0]})
		if _, absent := idOf(known, names[0]); err == nil && cli.IsAbsent(absent) {
			known, err = s.find(ctx, filter{}) // for the nearest name
		}
	case len(names) > 1:
		known, err = s.find(ctx, filter{})
	}
	if err != nil {
		return nil, err
	}
	var targets []target
	for _, arg := range args {
		t := target{given: arg, id: strings.ToLower(arg)}
		if !cli.IsID(arg) {
			t.id, t.err = idOf(known, arg)
		}
		isKnown := func(other target) bool { return other.err == nil && other.id == t.id }
		if t.err != nil || !slices.ContainsFunc(targets, isKnown) {
			targets = append(targets, t)
		}
	}
	return targets, nil
}

// idOf is the id of the only server with a name.
func idOf(known []api.Item[api.Server], name string) (string, error) {
	all := make([]cli.Named, len(known))
	for n, item := range known {
		all[n] = cli.Named{ID: item.Value.ID, Name: item.Value.Name}
	}
	return cli.Only("server", name, all)
}

func (s *servers) resolveOne(ctx context.Context, arg string) (target, error) {
	targets, err := s.resolve(ctx, []string{arg})
	if err != nil {
		return target{}, err
	}
	return targets[0], targets[0].err
}

// finder completes servers that match a filter.
func (s *servers) finder(f filter) cli.Finder {
	return func(ctx context.Context, args []string, begun string) ([]string, error) {
		found, err := s.find(ctx, f)
		return completions(found, args, begun), err
	}
}

// completions offers names; and ids once something is typed, or where the name is not enough.
func completions(found []api.Item[api.Server], given []string, begun string) []string {
	var texts []string
	nameOf := names(found)
	for _, item := range found {
		name, server := nameOf(item.Value), item.Value
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

// Find reads the server that is given by its id, its instance's, or a name that only one server has.
func Find(ctx context.Context, a *cli.App, arg string) (api.Server, error) {
	s := servers{App: a}
	t, err := s.resolveOne(ctx, arg)
	if err != nil {
		return api.Server{}, err
	}
	found, err := api.Get[api.Server](ctx, a.API(), "/v1/servers/"+t.id, nil)
	return found.Value, err
}

// InstanceFlag replaces the server of a flag, which is given as for Find, by its instance's id. The API explains an id
// that no server has.
func InstanceFlag(cmd *cobra.Command, a *cli.App, name string) error {
	flag := cmd.Flags().Lookup(name)
	arg := flag.Value.String()
	if !flag.Changed || arg == "" {
		return nil
	}
	if err := errors.Join(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil { // cobra does it later
		return err
	}
	a.Begin()
	found, err := Find(cmd.Context(), a, arg)
	switch {
	case cli.IsID(arg) && api.HasStatus(err, http.StatusNotFound):
		return nil
	case err != nil:
		return err
	case found.Instance == nil:
		return exit.Errorf(exit.NotFound, "server %s is not tracked: %s servers connect %s", arg, a.Name, found.ID)
	}
	return flag.Value.Set(found.Instance.ID)
}
