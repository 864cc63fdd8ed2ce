//go:build bench

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cloudfn/cloudfn/shared/audit"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	logClients = 128
	logCalls   = 200 // by each client in one round
	logRounds  = 6
	insertPool = 16  // connections of the peer; we have 4, as a replica has by default
	copyRows   = 500 // in one statement of the limit
)

// logRig is one database whose request log is written in several ways.
type logRig struct {
	t    *testing.T
	log  *audit.Log
	pool *pgxpool.Pool
	one  *pgx.Conn
}

// side is what one way did: rows per second by round, and the latency of every call.
type side struct {
	rates []float64
	calls []float64
}

// TestRequestLog holds the collector of shared/audit against an insert per request (what one would write
// first) and against COPY of ready rows on one connection (what Postgres can take).
func TestRequestLog(t *testing.T) {
	rig := newLogRig(t)
	var ours, checked, inserts, copies side
	alternate(logRounds,
		func() { rig.crowd(&ours, rig.record) },
		func() { rig.crowd(&inserts, rig.insert) },
		func() { rig.copyAll(&copies) },
		func() { rig.crowd(&checked, rig.checkAndRecord) },
	)
	we, they, limit := median(ours.rates), median(inserts.rates), median(copies.rates)
	report(result{
		number: "1a", name: fmt.Sprintf("request log, rows/s, %d clients : insert per request, pool of %d", logClients,
			insertPool),
		ours: showRate(we), peer: showRate(they), ratio: we / they, target: atLeast(4),
	})
	report(result{
		number: "1b", name: fmt.Sprintf("request log, rows/s : COPY of %d ready rows at a time", copyRows),
		ours: showRate(we), peer: showRate(limit), ratio: we / limit, target: atLeast(0.5),
	})
	for _, p := range []int{50, 99} {
		a, b := percentile(ours.calls, p), percentile(inserts.calls, p)
		report(result{
			number: "1c", name: fmt.Sprintf("request log, p%d of a call : insert per request", p),
			ours: showMS(a), peer: showMS(b), ratio: a / b,
		})
	}
	both := median(checked.rates)
	report(result{
		number: "1d", name: "request log with the check before each request, rows/s : insert per request",
		ours: showRate(both), peer: showRate(they), ratio: both / they,
	})
}

func showRate(v float64) string { return fmt.Sprintf("%.0f/s", v) }

func newLogRig(t *testing.T) *logRig {
	t.Helper()
	ctx := context.Background()
	url := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	requests := postgres.Requests{DB: db}
	if err := requests.Maintain(ctx, time.Hour); err != nil { // the month's partition, as in production
		t.Fatal(err)
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = insertPool
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	rig := &logRig{t: t, log: audit.New(requests, db), pool: pool, one: testkit.Connect(t, url)}
	rig.mustBeDurable()
	return rig
}

// mustBeDurable refuses a database that only pretends to write.
func (r *logRig) mustBeDurable() {
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if value := testkit.Scalar[string](r.t, r.one, "select current_setting($1)", setting); value != "on" {
			r.t.Fatalf("%s is %s: this would measure nothing", setting, value)
		}
	}
}

// crowd measures one round of one way, and sees that there is a row for every answer.
func (r *logRig) crowd(s *side, call func(context.Context) error) {
	r.empty()
	ctx := context.Background()
	calls, all, err := crowd(logClients, logCalls, func() error { return call(ctx) })
	if err != nil {
		r.t.Fatal(err)
	}
	r.expect(len(calls))
	s.calls = append(s.calls, calls...)
	s.rates = append(s.rates, float64(len(calls))/all.Seconds())
}

func (r *logRig) record(ctx context.Context) error { return r.log.Record(ctx, newRow()) }

// checkAndRecord is what the edge does for every request.
func (r *logRig) checkAndRecord(ctx context.Context) error {
	if err := r.log.Ready(ctx); err != nil {
		return err
	}
	return r.record(ctx)
}

var rowColumns = []string{
	"id", "function", "method", "path", "status", "ms", "user_id", "project_id", "domain_id", "request_id", "remote",
	"code",
}

const insertRowSQL = `
insert into requests (id, function, method, path, status, ms, user_id, project_id, domain_id, request_id, remote, code)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`

func (r *logRig) insert(ctx context.Context) error {
	row := newRow()
	_, err := r.pool.Exec(ctx, insertRowSQL, rowValues(&row)...)
	return err
}

// copyAll writes as many rows as a round of the others, all of them ready before the clock starts.
func (r *logRig) copyAll(s *side) {
	r.empty()
	rows := make([][]any, logClients*logCalls)
	for i := range rows {
		row := newRow()
		rows[i] = rowValues(&row)
	}
	took := timed(func() {
		for from := 0; from < len(rows); from += copyRows {
			part := rows[from:min(from+copyRows, len(rows))]
			if _, err := r.one.CopyFrom(context.Background(), pgx.Identifier{"requests"}, rowColumns,
				pgx.CopyFromRows(part)); err != nil {
				r.t.Fatal(err)
			}
		}
	})
	r.expect(len(rows))
	s.rates = append(s.rates, float64(len(rows))/took*1000)
}

// empty makes every round meet a table of the same size.
func (r *logRig) empty() {
	if _, err := r.one.Exec(context.Background(), "truncate requests"); err != nil {
		r.t.Fatal(err)
	}
}

func (r *logRig) expect(answers int) {
	if rows := testkit.Scalar[int](r.t, r.one, "select count(*) from requests"); rows != answers {
		r.t.Errorf("%d rows for %d answers", rows, answers)
	}
}

func newRow() domain.Request {
	id := uuid.Must(uuid.NewV7())
	return domain.Request{
		ID: id, Function: "servers", Method: "GET", Path: "/v1/servers/4f8052c0-49f2-4b75-a508-5c4454e37731",
		Status:   200,
		Duration: 42 * time.Millisecond, UserID: "fe72559b26734b36b94e5ea3d594acc4",
		ProjectID: "43f6e73ab2484cdd87b789e3e289627c",
		DomainID:  "default", RequestID: "req-" + id.String(), Remote: "127.0.0.1",
	}
}

func rowValues(q *domain.Request) []any {
	return []any{
		q.ID, q.Function, q.Method, q.Path, int16(q.Status), int32(q.Duration.Milliseconds()),
		q.UserID, q.ProjectID, q.DomainID, q.RequestID, q.Remote, q.Code,
	}
}
