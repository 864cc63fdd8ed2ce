package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/files"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// Context is where a cloudfn is, and the cloud whose user calls it.
type Context struct {
	URL    string `json:"url,omitempty"`
	Cloud  string `json:"os_cloud,omitempty"` // a name in clouds.yaml
	CACert string `json:"cacert,omitempty"`   // file with the certificate authorities to trust
}

// contexts is the content of the file that config writes.
type contexts struct {
	Current  string             `json:"current,omitempty"`
	Contexts map[string]Context `json:"contexts"`
}

// contextFile is CLOUDFN_CONFIG, or else a file in the system's folder for settings; "" = without such a folder.
func (a *App) contextFile() string {
	if file := a.Getenv("CLOUDFN_CONFIG"); file != "" {
		return file
	}
	dir := a.Getenv("XDG_CONFIG_HOME")
	if home := a.Getenv("HOME"); !filepath.IsAbs(dir) && home != "" {
		dir = filepath.Join(home, ".config")
	}
	if !filepath.IsAbs(dir) {
		return ""
	}
	return filepath.Join(dir, "cloudfn", "config.yaml")
}

// readContexts reads the file. An absent one has no contexts.
func (a *App) readContexts() (found contexts, err error) {
	file := a.contextFile()
	text, err := os.ReadFile(file) //nolint:gosec // the user names it
	if err == nil {
		err = yaml.UnmarshalStrict(text, &found)
	}
	if found.Contexts == nil {
		found.Contexts = map[string]Context{}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return found, exit.Usagef("%s: %w", file, err)
	}
	return found, nil
}

// lockTime is how long a command waits for another one that changes the file.
const lockTime = 5 * time.Second

// changeContexts changes the file.
func (a *App) changeContexts(change func(*contexts) error) error {
	file := a.contextFile()
	if file == "" {
		return exit.Usagef("HOME is not set: set CLOUDFN_CONFIG to a file for the contexts")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	unlock, err := files.Lock(file, lockTime)
	if errors.Is(err, fs.ErrExist) {
		return exit.Errorf(exit.Conflict, "%w: delete it if no other cloudfn changes the contexts", err)
	}
	if err != nil {
		return err
	}
	defer unlock()
	found, err := a.readContexts()
	if err == nil {
		err = change(&found)
	}
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(found)
	if err != nil {
		return err
	}
	return files.Replace(file, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// useContext sets what the context in force has, unless a flag does. That is the context that --context or
// CLOUDFN_CONTEXT names, or else the current one: --url and CLOUDFN_URL set that one aside.
func (a *App) useContext() error {
	if a.flags == nil { // of a test
		return nil
	}
	found, err := a.readContexts()
	if err != nil {
		return err
	}
	hasURL := a.flags.Changed("url")
	name := cmp.Or(a.context, a.Getenv("CLOUDFN_CONTEXT"))
	if name == "" && !hasURL && a.Getenv("CLOUDFN_URL") == "" {
		name = found.Current
	}
	if name == "" {
		return nil
	}
	c, known := found.Contexts[name]
	if !known {
		return found.unknown(name)
	}
	if c.URL != "" && !hasURL {
		a.URL, a.caCert = c.URL, c.CACert
	}
	if c.Cloud != "" && !a.flags.Changed("os-cloud") {
		a.cloud = c.Cloud
	}
	return nil
}

// needsContext reports whether a command may call cloudfn. Cached reads the context for completions.
func needsContext(cmd *cobra.Command) bool {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	return cmd.HasParent() && !slices.Contains([]string{
		"config", "completion", "version", "help", cobra.ShellCompRequestCmd,
	}, cmd.Name())
}

func (c contexts) unknown(name string) error {
	all := slices.Sorted(maps.Keys(c.Contexts))
	if len(all) == 0 {
		return exit.Errorf(exit.NotFound, "unknown context %q: config set makes contexts", name)
	}
	return exit.Errorf(exit.NotFound, "unknown context %q; expected one of %s", name, strings.Join(all, ", "))
}

// contextRow is a context as config list prints it.
type contextRow struct {
	Current bool   `json:"current"`
	Name    string `json:"name"`
	Context
}

var contextTable = output.Table[contextRow]{
	Columns: []string{"CURRENT", "NAME", "URL", "OS_CLOUD", "CACERT+"},
	Texts: map[string]func(contextRow) string{"CURRENT": func(r contextRow) string {
		return map[bool]string{true: "*"}[r.Current]
	}},
	Name: func(r contextRow) string { return r.Name },
}

// ConfigCommand holds the commands for contexts.
func ConfigCommand(a *App) *cobra.Command {
	cmd := Group("config", "Keep several installations of cloudfn as contexts",
		listContexts(a), setContext(a), chooseContext(a), deleteContext(a))
	cmd.Long = `Keep several installations of cloudfn as contexts: a URL, a name in clouds.yaml and a file of
certificate authorities each, in CLOUDFN_CONFIG or ~/.config/cloudfn/config.yaml. --context or CLOUDFN_CONTEXT name the
one to use, else it is the current one, unless --url or CLOUDFN_URL say where cloudfn is. A context goes before the
other variables; one without a name in clouds.yaml takes the login that these have.`
	cmd.Example = "  cloudfn config set prod --url https://cloudfn.example.com --os-cloud prod\n" +
		"  cloudfn config use prod\n  cloudfn --context test servers list"
	return cmd
}

func listContexts(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the contexts", Args: cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			found, err := a.readContexts()
			if err != nil {
				return err
			}
			current := cmp.Or(a.Getenv("CLOUDFN_CONTEXT"), found.Current)
			rows := []contextRow{}
			for _, name := range slices.Sorted(maps.Keys(found.Contexts)) {
				rows = append(rows, contextRow{name == current, name, found.Contexts[name]})
			}
			return output.Values(&a.Print, rows, contextTable)
		},
	}
}

func setContext(a *App) *cobra.Command {
	var cacert string
	cmd := &cobra.Command{
		Use: "set NAME", Args: cobra.ExactArgs(1),
		Short:             "Create or change a context; the first one is the current one",
		ValidArgsFunction: a.Complete(1, a.contextNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.changeContexts(func(c *contexts) error {
				one := c.Contexts[args[0]]
				if cmd.Flags().Changed("url") {
					one.URL = a.URL
				}
				if cmd.Flags().Changed("os-cloud") {
					one.Cloud = a.cloud
				}
				if cmd.Flags().Changed("cacert") && cacert != "" { // else it would depend on the folder
					absolute, err := filepath.Abs(cacert)
					if err != nil {
						return err
					}
					cacert = absolute
				}
				if cmd.Flags().Changed("cacert") {
					one.CACert = cacert
				}
				c.Contexts[args[0]] = one
				c.Current = cmp.Or(c.Current, args[0])
				return nil
			})
		},
	}
	cmd.Long = "Create or change a context, by --url, --os-cloud and --cacert.\n" +
		"Flags left out keep their values; \"\" removes one."
	cmd.Flags().StringVar(&cacert, "cacert", "", "file with the certificate authorities to trust (CLOUDFN_CACERT)")
	return cmd
}

func chooseContext(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.Complete(1, a.contextNames),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeContexts(func(c *contexts) error {
				if _, known := c.Contexts[args[0]]; !known {
					return c.unknown(args[0])
				}
				c.Current = args[0]
				return nil
			})
		},
	}
}

func deleteContext(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME...", Short: "Delete contexts", Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: a.Complete(0, a.contextNames),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeContexts(func(c *contexts) error {
				for _, name := range args {
					if _, known := c.Contexts[name]; !known {
						return c.unknown(name)
					}
					delete(c.Contexts, name)
					if c.Current == name {
						c.Current = ""
					}
				}
				return nil
			})
		},
	}
}

// contextNames completes the names of contexts.
func (a *App) contextNames(context.Context, []string, string) ([]string, error) {
	found, err := a.readContexts()
	return slices.Sorted(maps.Keys(found.Contexts)), err
}
