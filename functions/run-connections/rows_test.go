package runconnections

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func (w *world) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := testkit.Pool(t, w.database).Exec(context.Background(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func (w *world) text(t *testing.T, sql string, args ...any) string {
	t.Helper()
	return testkit.Scalar[string](t, testkit.Pool(t, w.database), sql, args...)
}

// eventsOf returns the states or statuses of a subject's events, in their order, with spaces between them.
func (w *world) eventsOf(t *testing.T, subject uuid.UUID) string {
	t.Helper()
	return w.text(t, `select coalesce(string_agg(coalesce(data->>'state', data->>'status'), ' ' order by seq), '')
  from events
where project_id = $1 and subject = $2 and type <> 'cloudfn.connection.revocation.v1'`, w.ID, subject.String())
}

func (w *world) ends(t *testing.T, subject uuid.UUID, want string) {
	t.Helper()
	if got := w.eventsOf(t, subject); !strings.HasSuffix(got, want) {
		t.Errorf("the events are %q, which should end with %q", got, want)
	}
}

// status is the connection's.
func (w *world) status(t *testing.T, c domain.Connection) string {
	t.Helper()
	return w.text(t, "select status from connections where id = $1", c.ID)
}
