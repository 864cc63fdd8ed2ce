package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// keyKinds are the prefixes of the variables of keys, with what is encrypted with them.
var keyKinds = []struct {
	prefix string
	stored func(*postgres.DB, context.Context) ([]domain.KeyUse, error)
}{
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
		keys, _ := seal.ParsePrivateKeys(domain.Secret(private)) // without it every key is missing
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
