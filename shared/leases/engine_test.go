package leases

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDecide: what a lease of every status needs at every time of its period. "status work due start_result", where due
// is the start, the warning, the end, or never.
func TestDecide(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	end := start.Add(2 * time.Hour)
	times := map[string]time.Time{
		"before": start.Add(-time.Second), "start": start, "during": start.Add(time.Hour),
		"warning": end.Add(-time.Minute), "end": end, "after": end.Add(3 * time.Hour),
	}
	for status, row := range map[domain.LeaseStatus]map[string]string{
		domain.LeasePending: {
			"before": "pending prepare start", "start": "starting start never", "during": "starting start never",
			"warning": "starting start never", "end": "ending finish never skipped",
			"after": "ending finish never skipped",
		},
		domain.LeaseStarting: { // before its start after a retry only
			"before": "starting prepare start", "start": "starting start never", "during": "starting start never",
			"warning": "starting start never", "end": "ending finish never failed",
			"after": "ending finish never failed",
		},
		domain.LeaseActive: {
			"before": "active maintain warning", "start": "active maintain warning", "during": "active maintain warning",
			"warning": "active maintain end warned", "end": "ending finish never failed",
			"after": "ending finish never failed",
		},
		domain.LeaseEnding: {
			"before": "ending finish never", "start": "ending finish never", "during": "ending finish never",
			"warning": "ending finish never", "end": "ending finish never", "after": "ending finish never",
		},
		domain.LeaseEnded:     never("ended"),
		domain.LeaseCancelled: never("cancelled"),
		domain.LeaseError: {
			"before": "error none end", "start": "error none end", "during": "error none end",
			"warning": "error none end", "end": "ending finish never failed", "after": "ending finish never failed",
		},
	} {
		for at, want := range row {
			l := domain.Lease{Status: status, StartsAt: start, EndsAt: end, BeforeEnd: 10 * time.Minute}
			if got := show(l, decide(l, times[at], nil)); got != want {
				t.Errorf("%s %s: got %q, want %q", status, at, got, want)
			}
		}
	}
	if len(domain.LeaseStatuses()) != 7 {
		t.Error("the table lacks a status")
	}
}

func never(status string) map[string]string {
	row := map[string]string{}
	for _, at := range []string{"before", "start", "during", "warning", "end", "after"} {
		row[at] = status + " none never"
	}
	return row
}

func show(l domain.Lease, d decision) string {
	due := map[time.Time]string{
		{}: "never", l.EndsAt.Add(-l.BeforeEnd): "warning", l.StartsAt: "start", l.EndsAt: "end",
	}[d.due]
	text := fmt.Sprintf("%s %s %s", d.status, d.work, due)
	if d.startResult != "" {
		text += " " + string(d.startResult)
	}
	if d.warn {
		text += " warned"
	}
	return text
}

// TestDecideOnceMore: the cases that depend on more than status and time.
func TestDecideOnceMore(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	l := domain.Lease{StartsAt: start, EndsAt: start.Add(time.Hour), BeforeEnd: time.Minute}
	during, after := start.Add(time.Minute), start.Add(2*time.Hour)
	lost := lostBy("it has expired")
	failed := func(l *domain.Lease) { l.Status, l.StartResult = domain.LeaseError, domain.StepFailed }
	for name, tc := range map[string]struct {
		change func(*domain.Lease)
		now    time.Time
		lost   *domain.Problem
		want   string
	}{
		"lost before the start":          {status(domain.LeasePending), start.Add(-1), lost, "error none end"},
		"lost while active":              {status(domain.LeaseActive), during, lost, "error none end"},
		"lost at the end":                {status(domain.LeaseActive), after, lost, "ending finish never failed"},
		"lost, known":                    {status(domain.LeaseError), during, lost, "error none end"},
		"its start has failed":           {failed, during, nil, "error start never failed"},
		"its start has failed, and lost": {failed, during, lost, "error none end failed"},
		"its start has failed, over":     {failed, after, nil, "ending finish never failed"},
		"ended with an error": {func(l *domain.Lease) {
			l.Status, l.EndResult = domain.LeaseError, domain.StepFailed
		}, after, lost, "error finish never"},
		"warned already": {func(l *domain.Lease) {
			l.Status, l.WarnedAt = domain.LeaseActive, during
		}, start.Add(time.Hour - time.Second), nil, "active maintain end"},
		"no warning": {func(l *domain.Lease) {
			l.Status, l.BeforeEnd = domain.LeaseActive, 0
		}, start.Add(time.Hour - time.Second), nil, "active maintain end"},
		"it has started": {func(l *domain.Lease) {
			l.Status, l.StartResult = domain.LeaseActive, domain.StepDone
		}, after, nil, "ending finish never done"},
	} {
		one := l
		tc.change(&one)
		if got := show(one, decide(one, tc.now, tc.lost)); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

func status(s domain.LeaseStatus) func(*domain.Lease) { return func(l *domain.Lease) { l.Status = s } }

// TestPauses grow to a minute, and a start that is retried for a quarter of an hour fails after about 18 attempts.
func TestPauses(t *testing.T) {
	t.Parallel()
	for attempts, want := range map[int]time.Duration{
		1: 5 * time.Second, 2: 10 * time.Second, 4: 40 * time.Second, 5: time.Minute, 100: time.Minute,
	} {
		if got := pauseAfter(attempts); got != want {
			t.Errorf("after %d attempts: %s", attempts, got)
		}
	}
	for attempts, want := range map[int]time.Duration{1: time.Minute, 3: 4 * time.Minute, 5: 15 * time.Minute} {
		if got := flow.Backoff(longestPause, longestErrorPause, attempts); got != want {
			t.Errorf("in error, after %d attempts: %s", attempts, got)
		}
	}
	for range 100 {
		if got := withJitter(time.Minute); got > time.Minute || got < 45*time.Second {
			t.Errorf("a minute with jitter is %s", got)
		}
	}
	if got := triedFor(18); got < 15*time.Minute || got > 16*time.Minute {
		t.Errorf("18 attempts took %s", got)
	}
}

// ownClock lists the functions that read their process's clock, each with the reason why that decides nothing about a
// lease: it measures how long something takes in this process, for which Go uses a monotonic clock.
var ownClock = map[string]string{
	"shared/leases/engine.go Run":             "when a pass has begun in this process",
	"shared/leases/engine.go time":            "how long a pass takes in this process",
	"functions/run-leases/service.go tryPool": "how long ago this process has surveyed the pool",
	"shared/leases/host.go get":               "how old a list is that this process has read",
	"shared/delegation/sessions.go renew":     "for how long this process has a session",
	"shared/delegation/sessions.go reopen":    "since when this process has a session",
}

// TestLeasesUseTheDatabaseClock: a replica whose clock is wrong decides as the others do, since none reads its own.
func TestLeasesUseTheDatabaseClock(t *testing.T) {
	t.Parallel()
	unused := map[string]bool{}
	for name := range ownClock {
		unused[name] = true
	}
	parsed := 0
	for _, pattern := range []string{
		"functions/leases/*.go", "functions/run-leases/*.go", "shared/leases/*.go", "shared/delegation/*.go",
		"shared/postgres/lease*.go", "shared/postgres/reservation*.go", "shared/postgres/allocation*.go",
		"shared/postgres/node*.go", "shared/domain/lease*.go", "shared/domain/node*.go", "shared/domain/period*.go",
	} {
		files, err := filepath.Glob(filepath.Join(testkit.Root(), pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed++
			path, _ := filepath.Rel(testkit.Root(), file)
			for _, function := range readersOfClock(t, file) {
				if name := path + " " + function; ownClock[name] == "" {
					t.Errorf("%s reads the process's clock: leases go by the database's", name)
				} else {
					delete(unused, name)
				}
			}
		}
	}
	if len(unused) > 0 || parsed < 20 {
		t.Errorf("of %d files these do not read the clock any more: %v", parsed, unused)
	}
}

// readersOfClock lists the functions of a file that call time.Now, time.Since or time.Until.
func readersOfClock(t *testing.T, file string) (found []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, declared := range parsed.Decls {
		name := "a declaration"
		if f, ok := declared.(*ast.FuncDecl); ok {
			name = f.Name.Name
		}
		ast.Inspect(declared, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, ok := selector.X.(*ast.Ident)
			if ok && from.Name == "time" && slices.Contains([]string{"Now", "Since", "Until"}, selector.Sel.Name) {
				found = append(found, name)
			}
			return true
		})
	}
	return found
}

// TestTenancy: a host that aggregates keep for projects is of use to these only.
func TestTenancy(t *testing.T) {
	t.Parallel()
	metadata := func(pairs ...string) domain.Aggregate {
		a := domain.Aggregate{Name: "tenants", Hosts: []string{"h1"}, Metadata: map[string]string{}}
		for n := 0; n < len(pairs); n += 2 {
			a.Metadata[pairs[n]] = pairs[n+1]
		}
		return a
	}
	elsewhere := metadata("filter_tenant_id", "p2")
	elsewhere.Hosts = []string{"h2"}
	const keeps = "filter_tenant_id keeps"
	for name, tc := range map[string]struct {
		all     []domain.Aggregate
		project string
		want    string // in the conflict
	}{
		"none":               {nil, "p1", ""},
		"another host's":     {[]domain.Aggregate{elsewhere}, "p1", ""},
		"another property":   {[]domain.Aggregate{metadata("ssd", "p2")}, "p1", ""},
		"an empty list":      {[]domain.Aggregate{metadata("filter_tenant_id", " ")}, "p1", ""},
		"of another project": {[]domain.Aggregate{metadata("filter_tenant_id", "p2")}, "p1", keeps},
		"of this project":    {[]domain.Aggregate{metadata("filter_tenant_id", "p2, p1")}, "p1", ""},
		"of this in another one": {
			[]domain.Aggregate{metadata("filter_tenant_id", "p2"), metadata("filter_tenant_id", "p1")}, "p1", "",
		},
		"with a suffix": {[]domain.Aggregate{metadata("filter_tenant_id3", "p2")}, "p1", "filter_tenant_id3 keeps"},
		"of this with a suffix": {
			[]domain.Aggregate{metadata("filter_tenant_id", "p2", "filter_tenant_id2", "p1")}, "p1", "",
		},
		"for every project": {[]domain.Aggregate{metadata("filter_tenant_id", "p1")}, "", keeps},
	} {
		err := CheckAggregates(tc.all, "h1", tc.project)
		if (err == nil) != (tc.want == "") || err != nil && (apperr.CodeOf(err) != apperr.Conflict ||
			!strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
