// Package cli is what all commands share: the client and its login, flags, completion, output, waiting and errors.
package cli

import (
	"context"
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
	"github.com/cloudfn/cloudfn/shared/domain"
)

// App is one run of the program: what its commands share.
type App struct {
	In   *os.File
	Out  io.Writer
	Err  io.Writer
	Env  func(string) (string, bool)
	Now  func() time.Time
	Args []string // the command line, without the program's name
	Name string   // the program's, for help and hints

	Print     output.Printer
	HasColors bool                       // the user wants colors on a terminal
	ErrSize   func() (width, height int) // of the terminal; nil = Err is not a terminal

	// Confirm asks a question at a terminal; nil = nobody can answer.
	Confirm func(ctx context.Context, question string) (bool, error)

	URL            string
	cloud          string
	debug, noColor bool
	isTerminal     bool // Out is one
	isCompleting   bool // a shell completes a command line: nobody answers questions
	hasBegun       bool // the command line was right, and the command runs

	Client  *api.Client // made by API
	session *login.Login
}

// ErrInterrupted says that the user does not want to wait any more. Whoever leaves something running wraps it and
// says so.
var ErrInterrupted = errors.New("interrupted")

// Main runs a command line and gives its exit code.
func Main(args []string, in, out, err *os.File, commands func(*App) []*cobra.Command) int {
	ctx, stop := interruptible()
	defer stop()
	a := &App{
		In: in, Out: out, Err: err, Env: os.LookupEnv, Now: time.Now, Args: args[1:],
		isTerminal: term.IsTerminal(int(out.Fd())), ErrSize: terminalSize(err),
	}
	a.Confirm = a.confirmer()
	root := a.Root(args[0], commands)
	root.SetArgs(args[1:])
	command, failure := root.ExecuteContextC(ctx)
	return a.exit(failure, command.CommandPath())
}

// interruptible is a context that the first Ctrl-C, or the end of the terminal, cancels. The second one ends the
// process.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		<-signals
		signal.Stop(signals)
		cancel(ErrInterrupted)
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}

// Root is the program's command. program is the path that it was started by: kn's plugin is called kn-cloud.
func (a *App) Root(program string, commands func(*App) []*cobra.Command) *cobra.Command {
	a.Name = "cloudfn"
	root := &cobra.Command{
		Use:   "cloudfn",
		Short: "Launch, watch and manage servers of an OpenStack cloud",
		Long: `Launch, watch and manage servers of an OpenStack cloud by cloudfn.

You log in as with every OpenStack client: by --os-cloud or OS_CLOUD and clouds.yaml, or by OS_AUTH_URL and the other
OS_ variables. --url or CLOUDFN_URL say where cloudfn is: one base URL, or one with {function} for functions that run
apart.

Exit codes: 0 done; 1 it was begun and failed; 2 wrong usage or input; 3 not signed in, or not allowed; 4 not found; 5
conflict; 6 a service does not answer, or not in time; 130 interrupted.`,
		SilenceErrors: true, SilenceUsage: true,
		PersistentPreRun: func(*cobra.Command, []string) { a.settle() },
	}
	if filepath.Base(program) == "kn-cloud" {
		a.Name = "kn cloud"
		root.Use, root.Annotations = "kn-cloud", map[string]string{cobra.CommandDisplayNameAnnotation: a.Name}
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(flagError)
	a.globalFlags(root)
	root.AddCommand(commands(a)...)
	a.watch(root)
	return root
}

// DefaultURL is where `make run` serves.
const DefaultURL = "http://127.0.0.1:8080"

func (a *App) globalFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	url := a.Getenv("CLOUDFN_URL")
	if url == "" {
		url = DefaultURL
	}
	flags.StringVar(&a.URL, "url", url, "where cloudfn is, with {function} for one URL per function (CLOUDFN_URL)")
	flags.StringVar(&a.cloud, "os-cloud", "", "name in clouds.yaml (OS_CLOUD)")
	flags.VarP(choice(&a.Print.Format, output.Formats), "output", "o", "table (cut to fit), wide, json, yaml or name")
	flags.StringSliceVar(&a.Print.Columns, "columns", nil, "only these columns of a table, or fields of JSON and YAML")
	flags.BoolVar(&a.noColor, "no-color", false, "no colors, not even on a terminal (NO_COLOR)")
	flags.BoolVar(&a.debug, "debug", false, "show requests and answers on stderr, without secrets")
	Choices(root, "output", output.Formats...)
	Choices(root, "url")
	Choices(root, "columns")
	a.CompleteFlag(root, "os-cloud", a.clouds)
}

// watch notes that a command begins. cobra checks for required flags right before it, after all other hooks.
func (a *App) watch(cmd *cobra.Command) {
	if cmd.Args != nil {
		cmd.Args = arguments(cmd.Args)
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.Begin()
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		a.watch(sub)
	}
}

// Begin notes that the command line was right: from now on an error is not one of usage by itself.
func (a *App) Begin() { a.hasBegun = true }

// settle sets what holds for every command.
func (a *App) settle() {
	isDumb := a.Getenv("TERM") == "dumb"
	a.HasColors = !a.noColor && !isDumb && a.Getenv("NO_COLOR") == "" // no-color.org: any value but the empty one
	if isDumb {
		a.ErrSize = nil // it cannot draw over lines
	}
	a.Print.Out, a.Print.Color = a.Out, a.isTerminal && a.HasColors
	if a.isTerminal {
		a.Print.Width = a.Width()
	}
}

// Getenv is a variable of the environment, or "".
func (a *App) Getenv(name string) string {
	text, _ := a.Env(name)
	return text
}

// API calls cloudfn as this user. Its first call reports what is wrong with the settings or the login.
func (a *App) API() *api.Client {
	if a.Client == nil {
		a.Client = a.NewClient(a.token)
	}
	return a.Client
}

// NewClient calls cloudfn with another token, or with none.
func (a *App) NewClient(token api.TokenFunc) *api.Client {
	return api.New(api.Options{URL: a.URL, CACert: a.Getenv("CLOUDFN_CACERT"), Token: token, Debug: a.debugger()})
}

func (a *App) token(ctx context.Context, renew bool) (domain.Secret, error) {
	user, err := a.User(ctx)
	if err != nil {
		return "", err
	}
	return user.Token(ctx, renew)
}

// User is who runs the command. It calls nobody yet.
func (a *App) User(ctx context.Context) (*login.Login, error) {
	if a.session != nil {
		return a.session, nil
	}
	session, err := login.New(ctx, login.Options{
		Env: a.Env, Cloud: a.cloud, Prompt: a.prompter(ctx), Wrap: a.debugger().Wrap,
	})
	if err != nil {
		return nil, err
	}
	for _, warning := range session.Warnings() {
		a.Notef("warning: %s", warning)
	}
	a.session = session
	return session, nil
}

// debugger shows requests to cloudfn and to Keystone, if the user wants that.
func (a *App) debugger() api.Debug {
	if !a.debug {
		return nil
	}
	return a.Notef
}

// Notef prints a line to stderr.
func (a *App) Notef(format string, args ...any) {
	fmt.Fprintln(a.Err, output.Clean(fmt.Sprintf(format, args...)))
}
