// Package cli is what all commands share: the client and its login, flags, completion, output, waiting and errors.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/login"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/buildinfo"
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

	// Confirm has a question answered at a terminal; nil = no one can answer.
	Confirm func(ctx context.Context, question string) (bool, error)

	URL            string
	cloud          string
	context        string // that a flag names
	caCert         string // of the context
	flags          *pflag.FlagSet
	debug, noColor bool
	isTerminal     bool // Out is one
	isCompleting   bool // a shell completes a command line: no one answers questions
	hasBegun       bool // the command line was right, and the command runs

	findTime     time.Duration // how long a completion may ask the API; 0 = unlimited
	startRefresh func()        // starts a process for the names that Cached keeps; nil = none are kept
	isRefreshing bool          // this is such a process

	Client  *api.Client    // made by API
	command *cobra.Command // that runs
	session *login.Login
}

// ErrInterrupted means that the user does not want to wait any more. A command that leaves something running wraps it
// and says so.
var ErrInterrupted = errors.New("interrupted")

// Main runs a command line and gives its exit code.
func Main(args []string, in, out, err *os.File, commands func(*App) []*cobra.Command) int {
	ctx, stop := interruptible()
	defer stop()
	a := &App{
		In: in, Out: out, Err: err, Env: os.LookupEnv, Now: time.Now, Args: slices.Clone(args[1:]),
		isTerminal: term.IsTerminal(int(out.Fd())), ErrSize: terminalSize(err),
	}
	a.Confirm = a.confirmer()
	a.bindCompletions()
	root := a.Root(args[0], commands)
	root.SetArgs(a.Args)
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
		Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.settle(cmd); err != nil || !needsContext(cmd) {
				return err
			}
			err := a.useContext()
			if err != nil {
				a.Begin() // the command line is right
			}
			return err
		},
	}
	if filepath.Base(program) == "kn-cloud" {
		a.Name = "kn cloud"
		root.Use, root.Annotations = "kn-cloud", map[string]string{cobra.CommandDisplayNameAnnotation: a.Name}
	}
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(flagError)
	root.Version = buildinfo.Version()
	a.globalFlags(root)
	root.AddCommand(commands(a)...)
	completeGet(root)
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
	flags.StringVar(&a.context, "context", "", "name of config list to take both from (CLOUDFN_CONTEXT)")
	a.flags = flags
	a.Print.Format = output.Formats[0]
	flags.VarP(a.formatFlag(), "output", "o",
		"table (cut to fit), wide, json, yaml, name, csv, value, jsonpath={.PATH} or custom-columns=TITLE:.PATH,...")
	flags.BoolP("quiet", "q", false, "only names or ids: the same as -o name")
	flags.StringSliceVarP(&a.Print.Columns, "columns", "c", nil,
		"only these columns of a table, or fields of JSON and YAML")
	flags.StringVar(&a.Print.Sort, "sort", "", "sort a list by this column of its table; COLUMN:desc: the other order")
	flags.BoolVar(&a.Print.NoHeaders, "no-headers", false, "no titles above the columns of a table or CSV")
	flags.BoolVar(&a.noColor, "no-color", false, "no colors, not even on a terminal (NO_COLOR)")
	flags.BoolVar(&a.debug, "debug", false, "show requests and answers on stderr, without secrets")
	Choices(root, "output", output.Formats...)
	a.CompleteFlag(root, "os-cloud", a.clouds)
	a.CompleteFlag(root, "context", a.contextNames)
}

// formatFlag is a flag for the format.
func (a *App) formatFlag() pflag.Value {
	return &value{
		kind: "string", text: output.Formats[0], field: func() any { return a.Print.Format }, set: a.Print.SetFormat,
	}
}

// watch notes that a command begins. cobra checks for required flags right before it, after all other hooks. Flags that
// nothing completes are not completed by files, as shells do, unless they name one.
func (a *App) watch(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, isCompleted := cmd.GetFlagCompletionFunc(f.Name); !isCompleted && !namesFile(f.Name) {
			Choices(cmd, f.Name)
		}
	})
	if cmd.Args != nil {
		cmd.Args = arguments(cmd.Args)
	}
	if cmd.Runnable() && cmd.Flags().ShorthandLookup("f") == nil && cmd.Flags().Lookup("format") == nil {
		// As with openstackclient, where no file has -f.
		cmd.Flags().VarP(a.formatFlag(), "format", "f", "the same as --output")
		_ = cmd.Flags().MarkHidden("format")
		Choices(cmd, "format", output.Formats...)
	}
	if cmd.Name() == "delete" {
		cmd.Aliases = append(cmd.Aliases, "rm")
	}
	a.ask(cmd)
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.Begin()
			a.command = cmd
			err := run(cmd, args)
			for _, flag := range a.Print.Unused() {
				if err == nil {
					a.Notef("--%s has no effect on what %s prints", flag, cmd.CommandPath())
				}
			}
			return err
		}
	}
	for _, sub := range cmd.Commands() {
		a.watch(sub)
	}
}

func namesFile(flag string) bool {
	return strings.HasSuffix(flag, "file") || slices.Contains([]string{"generate-key", "svg", "user-data"}, flag)
}

// Begin notes that the command line was right: from now on an error is no longer one of usage by default.
func (a *App) Begin() { a.hasBegun = true }

// settle sets what holds for every command.
func (a *App) settle(cmd *cobra.Command) error {
	if isQuiet, _ := a.flags.GetBool("quiet"); isQuiet {
		if cmd.Flags().Changed("output") || cmd.Flags().Changed("format") {
			return exit.Usagef("--quiet cannot be combined with a format: it is -o name")
		}
		a.Print.Format = "name"
	}
	isDumb := a.Getenv("TERM") == "dumb"
	a.HasColors = !a.noColor && !isDumb && a.Getenv("NO_COLOR") == "" // no-color.org: any value but the empty one
	if isDumb {
		a.ErrSize = nil // it cannot draw over lines
	}
	if a.context != "" && cmd.HasParent() && cmd.Parent().Name() == "config" {
		return exit.Usagef("--context has no effect on %s", cmd.CommandPath())
	}
	a.Print.Out, a.Print.Color = a.Out, a.isTerminal && a.HasColors
	if a.isTerminal {
		a.Print.Width = a.Width()
	}
	return nil
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
	return api.New(api.Options{
		URL: a.URL, CACert: cmp.Or(a.caCert, a.Getenv("CLOUDFN_CACERT")), Token: token, Debug: a.debugger(),
		NameField: a.FlagOf,
	})
}

func (a *App) token(ctx context.Context, renew bool) (domain.Secret, error) {
	user, err := a.User(ctx)
	if err != nil {
		return "", err
	}
	return user.Token(ctx, renew)
}

// User is who runs the command. It calls no one yet.
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

// exit prints an error in one line, and gives its exit code.
func (a *App) exit(err error, command string) int {
	if err == nil {
		return exit.Done
	}
	text := oneLine(err)
	if !a.hasBegun && a.Code(err) == exit.Usage {
		text = plainUsage(text)
		text += " (see " + command + " --help)"
	}
	fmt.Fprintln(a.Err, "cloudfn: "+text)
	return a.Code(err)
}

// oneLine prepares an error for a terminal: cobra's have line breaks and tabs, and others quote anybody's names.
func oneLine(err error) string {
	return output.Clean(strings.Join(strings.Fields(err.Error()), " "))
}

// Code is the exit code of an error.
func (a *App) Code(err error) int {
	type coded interface {
		error
		ExitCode() int
	}
	if errors.Is(err, ErrInterrupted) || errors.Is(err, context.Canceled) {
		return exit.Interrupted
	}
	if !a.hasBegun {
		return exit.Usage
	}
	if e, ok := errors.AsType[coded](err); ok {
		return e.ExitCode()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return exit.Unavailable
	}
	return exit.Failed
}

// Each does the same to each name, and goes on after a failure, whose reason it prints. With only one name, or when the
// others would fail as well, the failure is the command's error.
func (a *App) Each(names []string, do func(name string) error) error {
	var failed []string
	for _, name := range names {
		err := do(name)
		if err == nil {
			continue
		}
		if code := a.Code(err); len(names) == 1 || code == exit.Unavailable || code == exit.Interrupted {
			return err
		}
		a.Notef("%s: %s", name, oneLine(err))
		failed = append(failed, name)
	}
	if len(failed) == 0 {
		return nil
	}
	return exit.Failedf("it failed for %d of %d: %s", len(failed), len(names), strings.Join(failed, ", "))
}
