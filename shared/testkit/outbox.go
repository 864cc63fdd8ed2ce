package testkit

import (
	"context"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/seal"
)

// AddCallback inserts a callback as the function callbacks does, and returns its id. The previous secret, unless it is
// "", is valid for an hour.
func AddCallback(
	t testing.TB, conn Querier, projectID, url string, status domain.CallbackStatus, secret, previous string,
) uuid.UUID {
	t.Helper()
	id := uuid.New()
	must(conn.Exec(context.Background(), `
insert into callbacks (project_id, id, user_id, url, status, secret, previous_secret, previous_until)
values ($1, $2, 'tester', $3, $4, $5, $6, now() + interval '1 hour')`,
		projectID, id, url, status, Sealed(t, projectID, id, secret), Sealed(t, projectID, id, previous)))(t)
	return id
}

// Sealed returns a secret of a callback as the function callbacks stores it; nil for "".
func Sealed(t testing.TB, projectID string, id uuid.UUID, secret string) []byte {
	t.Helper()
	if secret == "" {
		return nil
	}
	key := must(seal.ParsePublicKey(SealPublicKey))(t)
	text := must(key.Seal("callback/"+projectID+"/"+id.String(), domain.Secret(secret)))(t)
	return text
}

// AddEvents inserts n events for each of the subjects, with the next sequence numbers.
func AddEvents(t testing.TB, conn Querier, projectID string, subjects []string, n int) {
	t.Helper()
	must(conn.Exec(context.Background(), `
insert into events (project_id, subject, seq, type, at, data)
select $1, s, coalesce((select max(e.seq) from events e where e.project_id = $1 and e.subject = s), 0) + i, $4,
       clock_timestamp(),
       jsonb_build_object('instance_id', s, 'state', 'active', 'n', i)
from generate_series(1, $3) i, unnest($2::text[]) s order by i`, projectID, subjects, n, domain.InstanceEvent))(t)
}
