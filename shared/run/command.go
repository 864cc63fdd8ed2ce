package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/buildinfo"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// Main is the whole program. It returns the exit code.
func Main(texts Texts, functions ...Function) int {
	ctx := context.Background()
	all, err := list(functions)
	if err == nil {
		err = command(ctx, os.Args[1:], texts, all)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cloudfn:", strings.ReplaceAll(err.Error(), "\n", "\ncloudfn: "))
		return 1
	}
	return 0
}

func command(ctx context.Context, args []string, texts Texts, functions []function) error {
	switch {
	case len(args) == 1 && slices.Contains([]string{"help", "--help", "-h"}, args[0]):
		fmt.Print(usage)
		return nil
	case len(args) == 1 && slices.Contains([]string{"version", "--version"}, args[0]):
		fmt.Println(buildinfo.Version())
		return nil
	case len(args) == 1 && args[0] == "migrate":
		return migrate(ctx)
	case len(args) == 1 && args[0] == "gateway":
		return runGateway(ctx, functions)
	case len(args) == 1 && args[0] == "keys":
		return printKeys(os.Stdout)
	case len(args) == 2 && args[0] == "keys" && args[1] == "status":
		return printKeysStatus(ctx, envconfig.OsLookuper(), os.Stdout)
	case len(args) == 1 && args[0] == "check":
		return check(ctx, envconfig.OsLookuper(), os.Stdout, functions)
	case len(args) == 1 && args[0] == "projects", len(args) == 3 && args[0] == "projects" && args[1] == "end",
		len(args) == 4 && args[0] == "projects" && args[1] == "end" && args[3] == "--with-servers":
		return projects(ctx, envconfig.OsLookuper(), args[min(len(args), 2):], os.Stdout)
	case len(args) == 1 && args[0] == "trustee":
		return printTrustee(ctx, envconfig.OsLookuper(), os.Stdout)
	case len(args) == 1 && args[0] == "describe":
		return printDescription(os.Stdout, functions)
	case len(args) > 0:
		return fmt.Errorf("unknown command %q; `cloudfnd --help` lists the commands", strings.Join(args, " "))
	}
	// The functions framework would print a blank line to stdout and to stderr for every request on Knative.
	_ = os.Unsetenv("K_SERVICE")
	p, err := newProcess(ctx, envconfig.OsLookuper(), texts, os.Stderr, functions)
	if err != nil {
		return err
	}
	return p.serve(ctx)
}

// migrateTimeout bounds migrate, which may wait for another one to finish.
const migrateTimeout = 10 * time.Minute

func migrate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	cfg, err := load[postgres.Config](ctx, envconfig.OsLookuper())
	if err != nil {
		return err
	}
	applied, err := postgres.Migrate(ctx, cfg)
	for _, name := range applied {
		fmt.Println("applied", name)
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	fmt.Println("the schema is at version", postgres.SchemaVersion)
	return nil
}

// usage is what `cloudfnd --help` prints.
const usage = `cloudfnd serves the function FUNCTION_TARGET, or without it all functions. Its settings are variables of
the environment.

  cloudfnd                   serve
  cloudfnd check             test every setting, and say what would be right
  cloudfnd migrate           update the database schema
  cloudfnd gateway           serve one base URL for functions that run one by one
  cloudfnd projects          list what projects have left that are not served any more
  cloudfnd projects end ID   end what one of them has left; its servers stay, unless --with-servers follows, which does
                             to servers on reserved hosts what on_end of their lease says
  cloudfnd keys              print key pairs
  cloudfnd keys status       count stored secrets by their keys
  cloudfnd trustee           print the user id that trusts are made to
  cloudfnd describe          print what the functions declare, as JSON
  cloudfnd version           print the version
`

// keyKind is a pair of keys: the prefix of its two variables, and what is encrypted with it.
type keyKind struct {
	prefix string
	stored func(*postgres.DB, context.Context) ([]domain.KeyUse, error)
}

var keyKinds = []keyKind{
	{"SEAL", (*postgres.DB).CallbackKeys},
	{"CONNECTION", (*postgres.DB).ConnectionKeys},
	{"MANAGED", (*postgres.DB).ManagedKeys},
}

// printKeys makes the pairs of keys for secrets, as lines of an environment: one pair for callbacks, one for
// connections, one for managed resources.
func printKeys(out io.Writer) error {
	for _, kind := range keyKinds {
		public, private, err := seal.Generate()
		if err != nil {
			return err
		}
		if _, err = fmt.Fprintf(out, "%s_PUBLIC_KEY=%s\n%s_PRIVATE_KEY=%s\n", kind.prefix, public, kind.prefix,
			private.Reveal()); err != nil {
			return err
		}
	}
	return nil
}

// keysTimeout bounds `cloudfnd keys status`.
const keysTimeout = time.Minute

// printKeysStatus prints for each key how many stored secrets are encrypted with it, and whether its private half is
// held. It fails if one is missing.
func printKeysStatus(ctx context.Context, env envconfig.Lookuper, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	cfg, err := load[postgres.Config](ctx, env)
	if err != nil {
		return err
	}
	db, err := postgres.Open(cfg, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VARIABLE\tKEY\tSTATUS\tSECRETS")
	var missing []string
	for _, kind := range keyKinds {
		uses, err := kind.stored(db, ctx)
		if err != nil {
			return err
		}
		private, _ := env.Lookup(kind.prefix + "_PRIVATE_KEY")
		keys, err := seal.ParsePrivateKeys(domain.Secret(private))
		if err != nil && private != "" { // without a value every key is missing
			return fmt.Errorf("%s_PRIVATE_KEY: %w", kind.prefix, err)
		}
		for _, id := range keys.IDs() {
			if !slices.ContainsFunc(uses, func(u domain.KeyUse) bool { return u.Key == id }) {
				uses = append(uses, domain.KeyUse{Key: id})
			}
		}
		for _, use := range uses {
			status := "held"
			if !slices.Contains(keys.IDs(), use.Key) {
				status, missing = "missing", append(missing, kind.prefix+"_PRIVATE_KEY lacks "+use.Key)
			}
			fmt.Fprintf(table, "%s_PRIVATE_KEY\t%s\t%s\t%d\n", kind.prefix, use.Key, status, use.Secrets)
		}
	}
	if err := table.Flush(); err != nil || missing == nil {
		return err
	}
	return errors.New(strings.Join(missing, "; ") + ": add the key behind a comma, or have the secrets set again")
}

// trusteeConfig is what run-connections logs in with.
type trusteeConfig struct {
	OpenStack openstack.Config
	Account   openstack.Credentials
}

// trusteeTimeout bounds the login.
const trusteeTimeout = 30 * time.Second

// printTrustee says to which user trusts have to be made, as a line of an environment: the one that run-connections
// logs in as. Keystone shows a user's id to the user itself, and the functions that make trusts do not hold the
// account.
func printTrustee(ctx context.Context, env envconfig.Lookuper, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, trusteeTimeout)
	defer cancel()
	cfg, err := load[trusteeConfig](ctx, env)
	if err != nil {
		return err
	}
	cloud, err := openstack.New(cfg.OpenStack, openstack.Options{})
	if err != nil {
		return err
	}
	defer cloud.Close()
	account, err := cloud.Account(cfg.OpenStack, cfg.Account)
	if err != nil {
		return err
	}
	if account.IsCredential() {
		return errors.New(account.Variable() + " is set: Keystone lets no application credential use a trust, set " +
			"OS_USERNAME and OS_PASSWORD")
	}
	session, err := account.Login(ctx)
	if err != nil {
		// one line
		return errors.New("the service account cannot log in: " + strings.ReplaceAll(err.Error(), "\n", ": "))
	}
	_, err = fmt.Fprintf(out, "TRUSTEE_USER_ID=%s\n", session.UserID())
	return err
}

// projectsConfig is what `cloudfnd projects` reads.
type projectsConfig struct {
	Postgres postgres.Config
	Callers  auth.Config
}

// projectsTimeout bounds `cloudfnd projects`, which ends objects one by one.
const projectsTimeout = 10 * time.Minute

// projects lists what the projects have left that the lists do not let in, or ends what one of them has left.
func projects(ctx context.Context, env envconfig.Lookuper, args []string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, projectsTimeout)
	defer cancel()
	cfg, err := load[projectsConfig](ctx, env)
	if err != nil {
		return err
	}
	db, err := postgres.Open(cfg.Postgres, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	unserved := postgres.Unserved{DB: db}
	all, err := unserved.ListRemains(ctx)
	if err != nil {
		return err
	}
	left := cfg.Callers.Unserved(all)
	if len(args) == 0 {
		return printRemains(out, left)
	}
	for _, r := range left {
		if r.ProjectID == args[0] {
			if err := unserved.End(ctx, r.ProjectID, len(args) > 1); err != nil {
				return err
			}
			_, err := fmt.Fprintf(out, "ended what project %s has left\n", r.ProjectID)
			return err
		}
	}
	return fmt.Errorf("project %q has nothing left to end, or ALLOWED_PROJECTS and ALLOWED_DOMAINS still serve it: "+
		"`cloudfnd projects` lists the ids", args[0])
}

func printRemains(out io.Writer, left []domain.Remains) error {
	if len(left) == 0 {
		_, err := fmt.Fprintln(out, "no project that is not served has left anything")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	kinds := postgres.OpenKinds()
	fmt.Fprintln(table, "PROJECT\tDOMAIN\tSINCE\t"+strings.ToUpper(strings.Join(kinds, "\t")))
	for _, r := range left {
		since := "-" // collect-stats has not observed it yet
		if !r.Since.IsZero() {
			since = r.Since.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\t%s", r.ProjectID, r.DomainID, since)
		for _, kind := range kinds {
			fmt.Fprintf(table, "\t%d", r.Counts[kind])
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}
