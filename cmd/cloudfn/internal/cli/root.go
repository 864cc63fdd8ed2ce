// Package cli holds the commands: a file for each noun, and every command knows which operations of the API it calls.
package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/login"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

// defaultURL is where `make run` serves.
const defaultURL = "http://127.0.0.1:8080"

// app is one run of the program: what its commands share.
type app struct {
	in       *os.File
	out      io.Writer
	err      io.Writer
	env      func(string) (string, bool)
	terminal bool                       // out is one
	size     func() (width, height int) // of the terminal that err is; nil = it is none
	args     []string                   // the command line, without the program's name
	name     string                     // the program's, as help and hints say it
	now      func() time.Time

	url, cloud     string
	debug, noColor bool
	print          output.Printer
	colors         bool // on a terminal
	completing     bool // a shell asks what could follow: nobody answers questions
	running        bool // the command has begun: what fails from now on is no wrong usage

	session *login.Login // by user
	client  *api.Client  // by api
}

// Main runs a command line and gives its exit code.
func Main(args []string, in, out, err *os.File) int {
	ctx, stop := interruptible()
	defer stop()
	a := &app{
		in: in, out: out, err: err, env: os.LookupEnv, now: time.Now,
		terminal: term.IsTerminal(int(out.Fd())),
		size:     terminalSize(err), args: args[1:],
	}
	root := a.root(args[0])
	root.SetArgs(args[1:])
	command, failure := root.ExecuteContextC(ctx)
	return a.exit(failure, command.CommandPath())
}

// interruptible is a context that Ctrl-C ends, or a terminal that is closed, once: the second one ends the process.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup does
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		<-signals
		signal.Stop(signals)
		cancel(errInterrupted)
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

func (a *app) root(name string) *cobra.Command {
	a.name = "cloudfn"
	root := &cobra.Command{
		Use:   "cloudfn",
		Short: "Launch, watch and manage servers of an OpenStack cloud",
		Long: `Launch, watch and manage servers of an OpenStack cloud by cloudfn.

Who you are is read as every OpenStack client does: --os-cloud or OS_CLOUD with clouds.yaml, or OS_AUTH_URL and the other
OS_ variables. Where cloudfn is: --url or CLOUDFN_URL, one base URL or one with {function} for functions that run one by one.

Exit codes: 0 done; 1 it was begun and did not succeed; 2 wrong usage or input; 3 not signed in, or not allowed;
4 not found; 5 conflict; 6 something is away or too slow; 130 interrupted.`,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.begin(cmd) },
	}
	if filepath.Base(name) == "kn-cloud" {
		a.name = "kn cloud"
		root.Use, root.Annotations = "kn-cloud", map[string]string{cobra.CommandDisplayNameAnnotation: a.name}
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	url, ok := a.env("CLOUDFN_URL")
	if !ok || url == "" {
		url = defaultURL
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", url, "where cloudfn is, with {function} for one URL per function (CLOUDFN_URL)")
	flags.StringVar(&a.cloud, "os-cloud", "", "name in clouds.yaml (OS_CLOUD)")
	flags.StringVarP(&a.print.Format, "output", "o", "table", "table, wide, json, yaml or name")
	flags.StringSliceVar(&a.print.Columns, "columns", nil, "only these columns of a table, or fields of JSON and YAML")
	flags.BoolVar(&a.noColor, "no-color", false, "no colors, on a terminal either (NO_COLOR)")
	flags.BoolVar(&a.debug, "debug", false, "show requests and answers on stderr, without secrets")
	root.CompletionOptions.HiddenDefaultCmd = false
	a.completions(root)
	root.AddCommand(a.commands()...)
	a.watch(root)
	return root
}

// watch notes when a command begins: cobra looks for required flags after all else, right before it.
func (a *app) watch(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.running = true
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		a.watch(sub)
	}
}

// commands are all of them, as help lists them.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		a.resourcesCommand(), a.launchCommand(), a.ordersCommand(), a.serversCommand(), a.statsCommand(), a.requestsCommand(),
		a.connectionsCommand(), a.callbacksCommand(),
		a.statusCommand(), a.loginCommand(), a.logoutCommand(), a.tokenCommand(), a.versionCommand(),
	}
}

// begin settles what holds for every command.
func (a *app) begin(*cobra.Command) error {
	a.print.Out = a.out
	if err := a.print.Validate(); err != nil {
		return err
	}
	never, _ := a.env("NO_COLOR") // no-color.org: whatever its value, unless that is empty
	kind, _ := a.env("TERM")
	a.colors = !a.noColor && never == "" && kind != "dumb"
	if kind == "dumb" {
		a.size = nil // nothing can be drawn anew there
	}
	a.print.Color = a.terminal && a.colors
	return nil
}

// user is who runs the command; nobody is called yet.
func (a *app) user(ctx context.Context) (*login.Login, error) {
	if a.session == nil {
		session, err := login.New(ctx, login.Options{Env: a.env, Cloud: a.cloud, Ask: a.asker(ctx), Wrap: a.debugger().Wrap})
		if err != nil {
			return nil, err
		}
		a.session = session
	}
	return a.session, nil
}

// api is the client of this user.
func (a *app) api(ctx context.Context) (*api.Client, error) {
	if a.client != nil {
		return a.client, nil
	}
	session, err := a.user(ctx)
	if err != nil {
		return nil, err
	}
	a.client, err = a.newClient(session.Token)
	return a.client, err
}

func (a *app) newClient(token api.TokenFunc) (*api.Client, error) {
	roots, err := a.roots()
	if err != nil {
		return nil, err
	}
	client, err := api.New(a.url, token, roots, a.debugger())
	if err != nil {
		return nil, usage{err}
	}
	return client, nil
}

// debugger shows what is said to cloudfn and to Keystone, if that is wanted.
func (a *app) debugger() api.Debug {
	if !a.debug {
		return nil
	}
	return func(format string, args ...any) { fmt.Fprintln(a.err, output.Clean(fmt.Sprintf(format, args...))) }
}

// roots are the certificate authorities of CLOUDFN_CACERT; nil is the system's.
func (a *app) roots() (*x509.CertPool, error) {
	file, ok := a.env("CLOUDFN_CACERT")
	if !ok || file == "" {
		return nil, nil //nolint:nilnil // no file, the system's
	}
	pem, err := os.ReadFile(file) //nolint:gosec // the user names it
	if err != nil {
		return nil, wrong("CLOUDFN_CACERT: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, wrong("CLOUDFN_CACERT: %s holds no certificate", file)
	}
	return pool, nil
}

// asker asks for a password at a terminal; nil when nobody is there to answer.
func (a *app) asker(ctx context.Context) func(string) (string, error) {
	in := int(a.in.Fd())
	if a.completing || !term.IsTerminal(in) {
		return nil
	}
	return func(prompt string) (string, error) {
		before, err := term.GetState(in)
		if err != nil {
			return "", err
		}
		fmt.Fprint(a.err, prompt)
		defer fmt.Fprintln(a.err)
		typed := make(chan string, 1)
		go func() {
			text, _ := term.ReadPassword(in) // an end of the input is nothing typed
			typed <- string(text)
		}()
		select {
		case text := <-typed:
			if text == "" {
				return "", errors.New("nothing was typed")
			}
			return text, nil
		case <-ctx.Done(): // the reading goes on until the process ends; the terminal must not stay without its echo
			return "", errors.Join(context.Cause(ctx), term.Restore(in, before))
		}
	}
}

// terminalSize asks for a terminal's size, each time anew; nil when the file is none.
func terminalSize(file *os.File) func() (width, height int) {
	fd := int(file.Fd())
	if !term.IsTerminal(fd) {
		return nil
	}
	return func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}
}
