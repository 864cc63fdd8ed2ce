package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/files"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

const (
	completionTime = 250 * time.Millisecond // how long a completion may ask the API: the user waits at every key
	refreshTime    = 9 * time.Second        // the same for a process that refreshes names, and has no one who waits
	refreshPause   = 3 * time.Second        // between two such processes
	maxNamesAge    = 10 * time.Minute
)

// refreshCommand stands in the place of cobra's command __complete, with the same arguments, for such a process.
const refreshCommand = "__refresh"

// Finder finds completions, each with a tab and a description if it has one. args are the arguments before, and begun
// is what was typed of this one.
type Finder func(ctx context.Context, args []string, begun string) ([]string, error)

// Complete completes the first most arguments (0 = all). After an error it completes nothing and says why, where the
// shell shows that: bash and zsh do.
func (a *App) Complete(most int, find Finder) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		a.isCompleting = true
		found, err := find(cmd.Context(), args, begun)
		if err != nil {
			return cobra.AppendActiveHelp(nil, output.Clean(a.noCompletions(err))), cobra.ShellCompDirectiveNoFileComp
		}
		return slices.DeleteFunc(found, func(text string) bool {
			name, description, _ := strings.Cut(text, "\t")
			return !strings.HasPrefix(name, begun) || output.Clean(name+description) != name+description
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// noCompletions says why a completion failed.
func (a *App) noCompletions(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("no completions: %s did not answer within %s; try again", a.URL, a.findTime)
	}
	return "no completions: " + err.Error()
}

// names are what a file keeps of one kind, for one URL and one login.
type names struct {
	ReadAt      time.Time `json:"read_at"`
	RefreshedAt time.Time `json:"refreshed_at"` // when a process for it started last
	Texts       []string  `json:"texts"`
}

// Cached returns a Finder that offers the names in a file while they are young, and has a process refresh them for the
// next time. what tells apart what find finds; arguments have no part in it.
func (a *App) Cached(what string, find func(context.Context) ([]string, error)) Finder {
	return func(ctx context.Context, _ []string, _ string) ([]string, error) {
		if err := a.useContext(); err != nil { // else a login would go to where it was not meant to
			return nil, err
		}
		if a.findTime > 0 {
			within, cancel := context.WithTimeout(ctx, a.findTime)
			defer cancel()
			ctx = within
		}
		if a.startRefresh == nil {
			return find(ctx)
		}
		user, err := a.User(ctx)
		if err != nil {
			return nil, err
		}
		file := user.NamesFile(a.URL, what)
		cached := readNames(file)
		refresh := func() {
			if !a.isRefreshing && a.Now().Sub(cached.RefreshedAt).Abs() >= refreshPause {
				cached.RefreshedAt = a.Now()
				if cached.write(file) == nil { // else it would be of no use
					a.startRefresh()
				}
			}
		}
		if !a.isRefreshing && len(cached.Texts) > 0 && a.Now().Sub(cached.ReadAt).Abs() < maxNamesAge {
			refresh()
			return cached.Texts, nil
		}
		found, err := find(ctx)
		if err == nil {
			_ = names{a.Now(), a.Now(), found}.write(file)
		} else if errors.Is(err, context.DeadlineExceeded) {
			refresh()
		}
		return found, err
	}
}

// readNames reads a file that no one else can read or write. Any other has no names.
func readNames(file string) (found names) {
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		return names{}
	}
	text, err := os.ReadFile(file) //nolint:gosec // its name is made from a hash
	if err != nil || json.Unmarshal(text, &found) != nil {
		return names{}
	}
	return found
}

func (n names) write(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return files.Create(file, 0o600, func(w io.Writer) error { return json.NewEncoder(w).Encode(n) })
}

// refresher starts a process that refreshes the names for a command line, and outlives this one.
func refresher(args []string) func() {
	return func() {
		if program, err := os.Executable(); err == nil {
			args := slices.Concat([]string{refreshCommand}, args[1:])
			_ = exec.CommandContext(context.Background(), program, args...).Start() //nolint:gosec // this program
		}
	}
}

// bindCompletions sets how long completions may take. The process that refreshes names completes a command line, too,
// and no one reads what it prints.
func (a *App) bindCompletions() {
	a.findTime, a.startRefresh = completionTime, refresher(a.Args)
	if len(a.Args) > 0 && a.Args[0] == refreshCommand {
		a.Args[0], a.findTime, a.isRefreshing = cobra.ShellCompNoDescRequestCmd, refreshTime, true
	}
}

// CompleteFlag completes a flag.
func (a *App) CompleteFlag(cmd *cobra.Command, flag string, find Finder) {
	_ = cmd.RegisterFlagCompletionFunc(flag, a.Complete(0, find))
}

// Choices completes a flag by fixed values; by none when only the user knows them.
func Choices(cmd *cobra.Command, flag string, values ...string) {
	fixed := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc(flag, fixed)
}

func (a *App) clouds(context.Context, []string, string) ([]string, error) {
	names, _, err := openstack.CloudNames(openstack.Config{
		ConfigFile: a.Getenv("OS_CLIENT_CONFIG_FILE"), SecureFile: a.Getenv("OS_CLIENT_SECURE_FILE"),
	})
	return names, err
}
