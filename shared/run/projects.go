package run

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

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
		since := "-" // collect-stats has not seen it yet
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
