package audit_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/audit"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func open(t *testing.T, url string) *postgres.DB {
	t.Helper()
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// TestEveryRowIsInPostgres when its Record has returned, also when there is one that Postgres cannot take.
func TestEveryRowIsInPostgres(t *testing.T) {
	t.Parallel()
	const n = 200
	for name, tc := range map[string]struct{ bad, want int }{"all good": {-1, n}, "one bad": {n / 2, n - 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testkit.Database(t)
			db := open(t, url)
			log := audit.New(postgres.Requests{DB: db}, db)
			if err := log.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					r := domain.Request{
						ID: uuid.Must(uuid.NewV7()), Method: "GET", Path: fmt.Sprint("/", i), Status: 200,
					}
					want := apperr.Code("")
					if i == tc.bad {
						r.Path, want = "NUL \x00 is no text", apperr.Unavailable
					}
					if err := log.Record(t.Context(), r); apperr.CodeOf(err) != want {
						t.Errorf("row %d: %v", i, err)
					}
				})
			}
			all.Wait()
			conn := testkit.Connect(t, url)
			got := testkit.Scalar[int](t, conn, "select count(*)::int from requests")
			different := testkit.Scalar[int](t, conn, "select count(distinct id)::int from requests")
			if got != tc.want || different != tc.want {
				t.Errorf("there are %d rows, %d of them different, want %d", got, different, tc.want)
			}
			// The rows of one COPY have one transaction.
			if used := testkit.Scalar[int](t, conn,
				"select count(distinct xmin::text)::int from requests"); tc.bad < 0 && used > n/2 {
				t.Errorf("%d rows took %d transactions", n, used)
			}
		})
	}
}

// TestReadyNamesWhatIsMissing when the database is there and its schema is not.
func TestReadyNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	db := open(t, testkit.EmptyDatabase(t))
	err := audit.New(postgres.Requests{DB: db}, db).Ready(t.Context())
	if e := apperr.As(err); e.Code != apperr.Unavailable ||
		e.Message != "the database's schema is older than this program: run migrate" {
		t.Errorf("got %s %q", e.Code, e.Message)
	}
}
