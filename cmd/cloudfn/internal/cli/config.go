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

// contextFile is CLOUDFN_CONFIG, or else the system's place for such files; "" = there is none.
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

// changeContexts changes the file.
func (a *App) changeContexts(change func(*contexts) error) error {
	file := a.contextFile()
	if file == "" {
		return exit.Usagef("HOME is not set: set CLOUDFN_CONFIG to a file for the contexts")
	}
	found, err := a.readContexts()
	if err == nil {
		err = change(&found)
	}
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(found)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err != nil {
		return err
	}
	return files.Replace(file, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// useContext sets what neither a flag nor, unless the flag --context names the context, the environment sets.
func (a *App) useContext() error {
	if a.flags == nil { // of a test
		return nil
	}
	found, err := a.readContexts()
	if err != nil {
		return err
	}
	name := cmp.Or(a.context, a.Getenv("CLOUDFN_CONTEXT"), found.Current)
	if name == "" {
		return nil
	}
	c, known := found.Contexts[name]
	if !known {
		return found.unknown(name)
	}
	isNamed := a.context != ""
	hasLogin := slices.ContainsFunc([]string{"OS_CLOUD", "OS_AUTH_URL", "OS_TOKEN"}, func(name string) bool {
		return a.Getenv(name) != ""
	})
	if c.URL != "" && !a.flags.Changed("url") && (isNamed || a.Getenv("CLOUDFN_URL") == "") {
		a.URL = c.URL
	}
	if !a.flags.Changed("os-cloud") && (isNamed || !hasLogin) {
		a.cloud = c.Cloud
	}
	if isNamed || a.Getenv("CLOUDFN_CACERT") == "" {
		a.caCert = c.CACert
	}
	return nil
}

func (c contexts) unknown(name string) error {
	err := exit.Errorf(exit.NotFound, "there is no context %q: cloudfn config set %s makes one", name, name)
	if len(c.Contexts) > 0 {
		err = exit.Errorf(exit.NotFound, "there is no context %q; there are %s", name,
			strings.Join(slices.Sorted(maps.Keys(c.Contexts)), ", "))
	}
	return err
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
		listContexts(a), setContext(a), useNamed(a), deleteContext(a))
	cmd.Long = `Keep several installations of cloudfn as contexts: a URL, a name in clouds.yaml and a file of certificate
authorities each, in CLOUDFN_CONFIG or ~/.config/cloudfn/config.yaml. The current one holds where neither flags nor
CLOUDFN_URL, CLOUDFN_CACERT and the OS_ variables say otherwise; --context names another one, and goes before these
variables.`
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
			rows := []contextRow{}
			for _, name := range slices.Sorted(maps.Keys(found.Contexts)) {
				rows = append(rows, contextRow{name == found.Current, name, found.Contexts[name]})
			}
			return output.Values(&a.Print, rows, contextTable)
		},
	}
}

func setContext(a *App) *cobra.Command {
	var cacert string
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Create or change a context; the first one is the current one", Args: cobra.ExactArgs(1),
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
				if cmd.Flags().Changed("cacert") {
					one.CACert = cacert
				}
				c.Contexts[args[0]] = one
				c.Current = cmp.Or(c.Current, args[0])
				return nil
			})
		},
	}
	cmd.Long = "Create or change a context, by --url, --os-cloud and --cacert. What is not given stays; \"\" removes it."
	cmd.Flags().StringVar(&cacert, "cacert", "", "file with the certificate authorities to trust (CLOUDFN_CACERT)")
	return cmd
}

func useNamed(a *App) *cobra.Command {
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
