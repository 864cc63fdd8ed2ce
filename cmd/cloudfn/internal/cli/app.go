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
	"regexp"
	"slices"
	"strconv"
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
	"github.com/cloudfn/cloudfn/shared/apperr"
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
	debug, noColor bool
	isTerminal     bool // Out is one
	isCompleting   bool // a shell completes a command line: no one answers questions
	hasBegun       bool // the command line was right, and the command runs

	Client  *api.Client // made by API
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
	root.Version = buildinfo.Version()
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
	flags.VarP(choice(&a.Print.Format, output.Formats), "output", "o",
		"table (cut to fit), wide, json, yaml, name, csv or value")
	flags.StringSliceVarP(&a.Print.Columns, "columns", "c", nil,
		"only these columns of a table, or fields of JSON and YAML")
	flags.StringVar(&a.Print.Sort, "sort", "", "sort a list by this column of its table; COLUMN:desc: the other order")
	flags.BoolVar(&a.Print.NoHeaders, "no-headers", false, "no titles above the columns of a table or CSV")
	flags.BoolVar(&a.noColor, "no-color", false, "no colors, not even on a terminal (NO_COLOR)")
	flags.BoolVar(&a.debug, "debug", false, "show requests and answers on stderr, without secrets")
	Choices(root, "output", output.Formats...)
	a.CompleteFlag(root, "os-cloud", a.clouds)
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
	if cmd.Runnable() && cmd.Flags().Lookup("file") == nil && cmd.Flags().Lookup("format") == nil {
		// As with openstackclient, where a file needs no -f.
		cmd.Flags().VarP(choice(&a.Print.Format, output.Formats), "format", "f", "the same as --output")
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
			return run(cmd, args)
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

// cobra, pflag and what they call have words for programmers. Those here are for who types a command.

// flagTypes are what flags take, by pflag's names of their types.
var flagTypes = map[string]string{
	"int": "a whole number", "bool": "true or false", "duration": "a duration such as 30s, 10m or 2h",
}

// flagError gives an error about a flag: what would be right, or the flag with the nearest name.
func flagError(cmd *cobra.Command, err error) error {
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		_, isNumber := errors.AsType[*strconv.NumError](err)
		flag := wrong.GetFlag()
		if must := flagTypes[flag.Value.Type()]; must != "" && (isNumber || flag.Value.Type() == "duration") {
			return fmt.Errorf("invalid argument %q for %q flag: must be %s", wrong.GetValue(), "--"+flag.Name, must)
		}
	}
	if absent, ok := errors.AsType[*pflag.NotExistError](err); ok && absent.GetSpecifiedShortnames() == "" {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		return suggest(err, absent.GetSpecifiedName(), names, "--")
	}
	return err
}

// suggest adds the known name that is nearest to a wrong one.
func suggest(err error, name string, known []string, prefix string) error {
	near := apperr.Nearest(name, known)
	if near == "" { // --keypair is far from --key-name, and begins alike
		n := slices.IndexFunc(known, func(k string) bool { return commonPrefix(k, name) >= minPrefix })
		if n < 0 {
			return err
		}
		near = known[n]
	}
	return fmt.Errorf("%w; did you mean %q?", err, prefix+near)
}

// minPrefix is how many letters two names must share at their begin to be alike.
const minPrefix = 3

func commonPrefix(a, b string) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

var argumentCount = regexp.MustCompile(`(\d+) arg\(s\), (?:only )?received (\d+)$`)

// arguments is a command's check of its arguments, in other words than cobra's.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		usage := cmd.CommandPath() + strings.TrimPrefix(cmd.Use, cmd.Name())
		if count := argumentCount.FindStringSubmatch(err.Error()); count != nil {
			if wanted, _ := strconv.Atoi(count[1]); len(args) > wanted {
				return fmt.Errorf("unexpected argument %q: %s%s", args[wanted], usage, withValue(cmd, args[wanted]))
			}
			return fmt.Errorf("an argument is missing: %s", usage)
		}
		switch {
		case strings.HasPrefix(err.Error(), "invalid argument ") && len(cmd.ValidArgs) > 0:
			return fmt.Errorf("%w; expected one of %s", err, strings.Join(cmd.ValidArgs, ", "))
		case !strings.HasPrefix(err.Error(), "unknown command "):
			return err
		case !cmd.HasSubCommands():
			return fmt.Errorf("unexpected argument %q: %s", args[0], usage)
		}
		var names []string
		for _, sub := range cmd.Commands() {
			names = append(names, sub.Name())
		}
		return suggest(err, args[0], names, "")
	}
}

// withValue suggests a flag whose value is optional, and takes it after = only.
func withValue(cmd *cobra.Command, value string) (hint string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.NoOptDefVal != "" && f.Value.String() == f.NoOptDefVal {
			hint = fmt.Sprintf("; did you mean --%s=%s?", f.Name, value)
		}
	})
	return hint
}

var (
	requiredFlags  = regexp.MustCompile(`^required flag\(s\) (.*) not set$`)
	exclusiveFlags = regexp.MustCompile(`^if any flags in the group \[.*\] are set none .*; \[(.*)\] were all set$`)
)

// plainUsage rewrites the errors that cobra finds last.
func plainUsage(text string) string {
	if found := requiredFlags.FindStringSubmatch(text); found != nil {
		names := strings.Split(strings.ReplaceAll(found[1], `"`, ""), ", ")
		return listFlags(names) + map[bool]string{true: " is missing", false: " are missing"}[len(names) == 1]
	}
	if found := exclusiveFlags.FindStringSubmatch(text); found != nil {
		return listFlags(strings.Fields(found[1])) + " cannot be combined"
	}
	return text
}

func listFlags(names []string) string { return "--" + strings.Join(names, " and --") }
