//go:build bench

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	seriesProjects = 5000
	seriesHours    = 720
	seriesRounds   = 9
	seriesLimit    = 50.0 // ms
)

// Each project has servers in one of ten domains, in every hour.
const (
	fillProjectsSQL = `
insert into stats_projects (project_id, domain_id, first_hour, last_hour)
select n, 'd' || n % 10, $2::timestamptz, $3::timestamptz from generate_series(1, $1::int) n`
	fillHoursSQL = `
insert into stats_hourly (project_id, hour, domain_id, running, total, by_status, source)
select n, hour, 'd' || n % 10, 3, 5, '{"ACTIVE": 3, "SHUTOFF": 2}', 'sampled'
from generate_series(1, $1::int) n, generate_series($2::timestamptz, $3::timestamptz, interval '1 hour') hour`
)

// TestSeries holds the sums of 720 hours of 5000 projects against their limit. Adding them up takes longer than a
// statement may.
func TestSeries(t *testing.T) {
	database, ctx := testkit.Database(t), context.Background()
	conn := testkit.Connect(t, database)
	last := time.Now().UTC().Truncate(time.Hour)
	first := last.Add(-(seriesHours - 1) * time.Hour)
	for _, sql := range []string{fillProjectsSQL, fillHoursSQL} {
		_, err := conn.Exec(ctx, sql, seriesProjects, first, last)
		must(t, err)
	}
	_, err := conn.Exec(ctx, "vacuum analyze")
	must(t, err)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 4}, nil)
	must(t, err)
	defer db.Close()
	store := postgres.Stats{DB: db}
	read := func() float64 {
		began := time.Now()
		hours, err := store.Series(ctx, domain.View{Scope: domain.ScopeCloud}, first, last)
		took := ms(time.Since(began))
		must(t, err)
		if len(hours) != seriesHours || hours[0].Running == nil || *hours[0].Running != 3*seriesProjects {
			t.Fatalf("%d hours, the first is %+v", len(hours), hours[0])
		}
		return took
	}
	must(t, store.Summarize(ctx, first, time.Now().Add(time.Hour)))
	var kept []float64
	for range seriesRounds {
		kept = append(kept, read())
	}
	name := fmt.Sprintf("statistics of the cloud, %d hours of %d projects", seriesHours, seriesProjects)
	report(result{
		number: "16", name: name + " : limit", ours: showMS(median(kept)), peer: showMS(seriesLimit),
		ratio: median(kept) / seriesLimit, target: atMost(1),
	})
}
