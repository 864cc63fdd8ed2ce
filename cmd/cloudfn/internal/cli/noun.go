package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/apperr"
)

// Noun is a kind of thing that the API has, and what all its commands share.
type Noun[T any] struct {
	Path  string // of the list: /v1/callbacks
	Key   string // the list's name in its answer: callbacks
	Arg   string // one of them in a command's usage: CALLBACK
	Table output.Table[T]
	Offer func(T) string // what completion offers: an id, a tab and a description
	Note  func(*App, T)  // prints notes before one of them; nil = none

	// Below prints what people see of one of them below its table; nil = nothing.
	Below func(*App, api.Item[T]) error

	// Ref is the UUID of one, what people may call it instead ("" = nothing), and whether that name is free again. nil
	// means that the API takes names.
	Ref func(T) (id, name string, isOver bool)
	// Within is the query of the list that has the one which a command names; nil = the whole list.
	Within func(*cobra.Command) url.Values

	HasNoPages bool // the list's answer has all of it
}

// Calls notes which operations of the API a command calls. A test finds the operations that no command calls.
func Calls(operations ...string) map[string]string {
	return map[string]string{"operations": strings.Join(operations, ",")}
}

// Group is a command that only holds others. What is named in the plural has the singular as its alias.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	help := func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: help}
	if singular, isPlural := strings.CutSuffix(use, "s"); isPlural {
		c.Aliases = []string{singular}
	}
	c.AddCommand(commands...)
	return c
}

// URL is the path of one, and of what belongs to it.
func (n Noun[T]) URL(id string, more ...string) string {
	parts := []string{n.Path}
	for _, part := range append([]string{id}, more...) {
		parts = append(parts, url.PathEscape(part))
	}
	return strings.Join(parts, "/")
}

// Find reads the list.
func (n Noun[T]) Find(ctx context.Context, a *App, query url.Values, limit int) ([]api.Item[T], error) {
	return n.list(query, limit).Read(ctx, a.API())
}

func (n Noun[T]) list(query url.Values, limit int) api.List[T] {
	return api.List[T]{Path: n.Path, Key: n.Key, Query: query, Limit: limit, HasNoPages: n.HasNoPages}
}

// Get reads one.
func (n Noun[T]) Get(ctx context.Context, a *App, id string, query url.Values) (api.Item[T], error) {
	return api.Get[T](ctx, a.API(), n.URL(id), query)
}

// Resolve finds the id of the only one of a list with a name. It takes an id as it is: the API knows whether there is
// such a one.
func (n Noun[T]) Resolve(ctx context.Context, a *App, arg string, query url.Values) (string, error) {
	if n.Ref == nil {
		return arg, nil
	}
	ref := func(i api.Item[T]) (id, name string, isOver bool) { return n.Ref(i.Value) }
	list := func([]string) ([]api.Item[T], error) { return n.Find(ctx, a, query, 0) }
	all, err := Resolve([]string{arg}, strings.ToLower(n.Arg), ref, list)
	if err != nil {
		return "", err
	}
	id, err := all[0].ID, all[0].Err
	if isAbsent(err) && !strings.Contains(err.Error(), didYouMean) {
		err = exit.Errorf(exit.NotFound, "%w: %s %s list shows those that there are", err, a.Name, n.Key)
	}
	return id, err
}

// Near adds to the error for a name that the API does not know the nearest one that it does.
func (n Noun[T]) Near(ctx context.Context, a *App, arg string, err error) error {
	if n.Ref != nil || n.Table.Name == nil {
		return err
	}
	return Near(err, arg, func() (names []string) {
		found, _ := n.Find(ctx, a, nil, 0)
		for _, item := range found {
			names = append(names, n.Table.Name(item.Value))
		}
		return names
	})
}

// Finder completes ids.
func (n Noun[T]) Finder(a *App, query url.Values, limit int) Finder {
	return a.Cached(fmt.Sprintf("%s %s?%s %d", n.Arg, n.Path, query.Encode(), limit),
		func(ctx context.Context) ([]string, error) {
			found, err := n.Find(ctx, a, query, limit)
			texts := make([]string, len(found))
			for i, item := range found {
				texts[i] = n.Offer(item.Value)
			}
			return texts, err
		})
}

// Print prints one.
func (n Noun[T]) Print(a *App, item api.Item[T]) error {
	if n.Note != nil {
		n.Note(a, item.Value)
	}
	if err := output.One(&a.Print, item, n.Table); err != nil || n.Below == nil || !a.Print.IsWhole() {
		return err
	}
	return n.Below(a, item)
}

// Send sends a request whose answer is one, and prints it.
func (n Noun[T]) Send(ctx context.Context, a *App, method, path string, body any) error {
	item, err := api.Send[T](ctx, a.API(), method, path, body)
	if err != nil {
		return err
	}
	return n.Print(a, item)
}

// SendOnce is Send for a POST that takes an Idempotency-Key.
func (n Noun[T]) SendOnce(ctx context.Context, a *App, path string, body any) error {
	item, err := SendOnce[T](ctx, a, path, body)
	if err != nil {
		return err
	}
	return n.Print(a, item)
}

// List is the command that lists them. fields are the flags that the API filters by, as for Query; the caller adds
// them.
func (n Noun[T]) List(a *App, short, operation string, fields ...string) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: short, Args: cobra.NoArgs, Annotations: Calls(operation),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return n.PrintList(cmd, a, Query(cmd.Flags(), fields...))
		},
	}
	WatchFlag(cmd)
	return cmd
}

// PrintList reads the list, up to the command's limit, and prints it: page by page where no row depends on others, so
// that a long list takes no more memory than a short one.
func (n Noun[T]) PrintList(cmd *cobra.Command, a *App, query url.Values) error {
	if isWatch, _ := cmd.Flags().GetBool("watch"); a.Print.IsPerRow() && !isWatch {
		given := a.Print.NoHeaders
		defer func() { a.Print.NoHeaders = given }()
		for page, err := range n.list(query, Limit(cmd)).Pages(cmd.Context(), a.API()) {
			if err != nil {
				return err
			}
			if err := output.List(&a.Print, page, n.Table); err != nil {
				return err
			}
			a.Print.NoHeaders = true
		}
		return nil
	}
	return PrintList(cmd, a, func() ([]api.Item[T], output.Table[T], error) {
		found, err := n.Find(cmd.Context(), a, query, Limit(cmd))
		return found, n.Table, err
	})
}

// WatchFlag adds --watch to a list that PrintList prints.
func WatchFlag(cmd *cobra.Command) {
	cmd.Flags().BoolP("watch", "w", false, "go on, and print what is new or has changed, until Ctrl-C")
}

// watchPause is the time between two reads of a list that is watched.
const watchPause = 2 * time.Second

// PrintList prints a list. With --watch it goes on with the rows that are new or have changed.
func PrintList[T any](
	cmd *cobra.Command, a *App, read func() ([]api.Item[T], output.Table[T], error),
) error {
	items, table, err := read()
	if err == nil {
		err = output.List(&a.Print, items, table)
	}
	if isWatch, _ := cmd.Flags().GetBool("watch"); err != nil || !isWatch {
		return err
	}
	changes := a.Print
	changes.NoHeaders = true
	for known := raws(items); ; {
		select {
		case <-time.After(watchPause):
		case <-cmd.Context().Done():
			return context.Cause(cmd.Context())
		}
		items, table, err := read()
		if api.IsTransient(err) {
			continue
		}
		changed := slices.DeleteFunc(slices.Clone(items), func(i api.Item[T]) bool { return known[string(i.Raw)] })
		if err == nil && len(changed) > 0 {
			err = output.List(&changes, changed, table)
		}
		if err != nil {
			return err
		}
		known = raws(items)
	}
}

// raws are the things of a list, as they came.
func raws[T any](items []api.Item[T]) map[string]bool {
	all := map[string]bool{}
	for _, i := range items {
		all[string(i.Raw)] = true
	}
	return all
}

// One is a command for one of them.
func (n Noun[T]) One(
	a *App, name, short, operation string, run func(cmd *cobra.Command, id string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: name + " " + n.Arg, Short: short, Args: cobra.ExactArgs(1), Annotations: Calls(operation),
		ValidArgsFunction: a.Complete(1, n.Finder(a, nil, 0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var query url.Values
			if n.Within != nil {
				query = n.Within(cmd)
			}
			id, err := n.Resolve(cmd.Context(), a, args[0], query)
			if err != nil {
				return err
			}
			return n.Near(cmd.Context(), a, id, run(cmd, id))
		},
	}
}

// Show is the command that shows one.
func (n Noun[T]) Show(a *App, short, operation string) *cobra.Command {
	return n.One(a, "show", short, operation, func(cmd *cobra.Command, id string) error {
		return n.Send(cmd.Context(), a, http.MethodGet, n.URL(id), nil)
	})
}

// Act is the command that does something with one by POST, without a body, and prints what it is then.
func (n Noun[T]) Act(a *App, action, short, operation string) *cobra.Command {
	return n.One(a, action, short, operation, func(cmd *cobra.Command, id string) error {
		return n.Send(cmd.Context(), a, http.MethodPost, n.URL(id, action), nil)
	})
}

// Delete is the command that deletes some of them.
func (n Noun[T]) Delete(a *App, short, operation string) *cobra.Command {
	return n.Each(a, "delete", short, operation, func(ctx context.Context, id string) error {
		return a.API().Do(ctx, http.MethodDelete, n.URL(id), nil, nil)
	})
}

// Each is a command for any number of them.
func (n Noun[T]) Each(
	a *App, name, short, operation string, do func(ctx context.Context, id string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: name + " " + n.Arg + "...", Short: short, Args: cobra.MinimumNArgs(1), Annotations: Calls(operation),
		ValidArgsFunction: a.Complete(0, n.Finder(a, nil, 0)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(args, func(arg string) error {
				id, err := n.Resolve(cmd.Context(), a, arg, nil)
				if err != nil {
					return err
				}
				return n.Near(cmd.Context(), a, id, do(cmd.Context(), id))
			})
		},
	}
}

// Statuses adds --status for a list; the API takes several, separated by commas.
func Statuses(cmd *cobra.Command, statuses []string, byDefault string) {
	usage := "only those that are " + strings.Join(statuses, ", ") + byDefault
	cmd.Flags().StringSlice("status", nil, usage)
	Choices(cmd, "status", statuses...)
}

// ConnectionQuery is the query of a request through a connection, if there is one.
func ConnectionQuery(id string) url.Values {
	if id == "" {
		return nil
	}
	return url.Values{"connection_id": {id}}
}

// Optional is a pointer to a value; the zero value gives nil.
func Optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

var idForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// IsID reports whether a text has the form of an id. Commands never take such a text for a name.
func IsID(text string) bool { return idForm.MatchString(text) }

// Target is a thing that the user has given by its id or name.
type Target struct {
	Given, ID string
	Err       error // why it was not found
}

// Resolve finds the things of args, each once. It takes ids as they are: the API knows whether there is such a one.
// list reads those that the names may mean, and ref is as in Noun.
func Resolve[T any](
	args []string, thing string, ref func(T) (id, name string, isOver bool), list func(names []string) ([]T, error),
) (targets []Target, err error) {
	var known []T
	if names := slices.DeleteFunc(slices.Clone(args), IsID); len(names) > 0 {
		if known, err = list(names); err != nil {
			return nil, err
		}
	}
	for _, arg := range args {
		t := Target{Given: arg, ID: strings.ToLower(arg)}
		if !IsID(arg) {
			t.ID, t.Err = only(thing, arg, known, ref)
		}
		isSame := func(other Target) bool { return other.Err == nil && other.ID == t.ID }
		if t.Err != nil || !slices.ContainsFunc(targets, isSame) {
			targets = append(targets, t)
		}
	}
	return targets, nil
}

// One gives the id of the only one that was resolved.
func One(targets []Target, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return targets[0].ID, targets[0].Err
}

const didYouMean = "did you mean"

// only gives the id of the only thing with a name: of those that are not over, if there are any. Without one the error
// has the nearest name.
func only[T any](thing, name string, all []T, ref func(T) (id, name string, isOver bool)) (string, error) {
	var ids, open, names []string
	for _, one := range all {
		id, called, isOver := ref(one)
		if names = append(names, called); called != name {
			continue
		}
		if ids = append(ids, id); !isOver {
			open = append(open, id)
		}
	}
	if len(open) > 0 {
		ids = open
	}
	switch len(ids) {
	case 0:
		return "", Near(exit.Errorf(exit.NotFound, "there is no %s %q", thing, name), name,
			func() []string { return names })
	case 1:
		return ids[0], nil
	}
	return "", exit.Errorf(exit.Conflict, "%d %ss are named %q: give one of the ids %s", len(ids), thing, name,
		strings.Join(ids, ", "))
}

// isAbsent reports whether an error means that the object does not exist, here or in the API.
func isAbsent(err error) bool {
	coded, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err)
	return ok && coded.ExitCode() == exit.NotFound
}

// Near adds to the error for an absent name the nearest of the names that there are. It reads them only then.
func Near(err error, name string, names func() []string) error {
	if !isAbsent(err) || IsID(name) || strings.Contains(err.Error(), didYouMean) {
		return err
	}
	if near := apperr.Nearest(name, names()); near != "" && near != name {
		return fmt.Errorf("%w; %s %q?", err, didYouMean, near)
	}
	return err
}

// ConnectionFlag adds --connection, the id of a connection that the user may act through.
func (a *App) ConnectionFlag(cmd *cobra.Command, usage string) {
	a.ConnectionFlagOf(cmd, cmd.Flags(), new(string), usage)
}

// ConnectionFlagOf adds --connection to some of the command's flags.
func (a *App) ConnectionFlagOf(cmd *cobra.Command, flags *pflag.FlagSet, id *string, usage string) {
	flags.StringVar(id, "connection", "", usage)
	flag := flags.Lookup("connection")
	flag.Value = notEmpty{flag.Value}
	usable := Noun[api.Connection]{Path: "/v1/connections", Key: "connections", Offer: func(c api.Connection) string {
		return c.ID + "\t" + string(c.Kind) + " " + string(c.Status)
	}}
	a.CompleteFlag(cmd, "connection", usable.Finder(a, url.Values{"usable": {"true"}}, 0))
}
