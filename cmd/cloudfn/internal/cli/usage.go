package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/apperr"
)

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
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 { // its flags are those of another command
		return unknownCommand(cmd, words)
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
	if near := nearest(name, known); near != "" {
		return fmt.Errorf("%w; %s %q?", err, didYouMean, prefix+near)
	}
	return err
}

// nearest is the known name that takes the fewest edits, or begins alike: --keypair is far from --key-name.
func nearest(name string, known []string) string {
	if near := apperr.Nearest(name, known); near != "" {
		return near
	}
	if n := slices.IndexFunc(known, func(k string) bool { return commonPrefix(k, name) >= minPrefix }); n >= 0 {
		return known[n]
	}
	return ""
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
		return unknownCommand(cmd, args)
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

// TextOnly rejects what a command that prints a text would ignore: other formats than these, and the columns of tables.
func (a *App) TextOnly(cmd *cobra.Command, formats ...string) error {
	if !slices.Contains(formats, a.Print.Format) {
		return exit.Usagef("-o %s: %s takes only %s", a.Print.Format, cmd.CommandPath(), strings.Join(formats, ", "))
	}
	flags := []string{"sort", "no-headers"}
	if !a.Print.IsData() {
		flags = append(flags, "columns")
	}
	for _, flag := range flags {
		if cmd.Flags().Changed(flag) {
			return exit.Usagef("--%s requires a table: %s prints a text", flag, cmd.CommandPath())
		}
	}
	return nil
}
