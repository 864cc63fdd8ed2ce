package process_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// found is how a connection is in the database.
type found struct {
	ID, Events, Revocations string
	HasSecret, IsRevoked    bool
	IsChecked               bool // since the last step began
	Seq, LastSeq            int64
}

func (m *month) read(t *testing.T) map[string]found {
	t.Helper()
	rows, _ := m.pool.Query(context.Background(), `
select c.id::text,
       string_agg(e.data->>'status', ' ' order by e.seq) filter (where e.type = 'cloudfn.connection.state.v1'),
       coalesce(string_agg(e.data->>'status', ' ' order by e.seq)
                filter (where e.type = 'cloudfn.connection.revocation.v1'), ''),
       c.secret is not null, c.revoked, c.checked_at >= clock_timestamp() - interval '1 day', c.seq, max(e.seq)
from connections c join events e on e.project_id = c.project_id and e.subject = c.id::text group by c.project_id, c.id`)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[found])
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]found{}
	for _, f := range list {
		all[f.ID] = f
	}
	return all
}

// wrong says which connections are not as they should be by now.
func (m *month) wrong(t *testing.T, step int) (wrong []string) {
	t.Helper()
	rows := m.read(t)
	for _, l := range m.all {
		if why := l.differs(rows[l.id], step); why != "" {
			wrong = append(wrong, fmt.Sprintf("%s: %s: %+v", l, why, rows[l.id]))
		}
	}
	return wrong
}

func (l *delegated) differs(f found, step int) string {
	isOver := (l.end == expires || l.end == idle) && step >= l.step
	want := []string{l.events}
	switch {
	case !l.isActive():
	case isOver && l.isRefused: // whichever is found first
		want = []string{"active expired", "active lost"}
	case isOver:
		want = []string{"active expired"}
	case l.isRefused:
		want = []string{"active lost"}
	case !l.until.IsZero() && time.Now().After(l.until): // it may have been checked before that
		want = append(want, "active lost")
	}
	if !slices.Contains(want, f.Events) {
		return "expected the events " + strings.Join(want, " or ")
	}
	l.events = f.Events
	switch {
	case l.isActive() && !f.IsChecked:
		return "expected to be checked"
	case !l.isActive() && f.HasSecret:
		return "expected without its secret"
	case l.isActive() || l.kind != trust:
	case l.owner.isAway && !f.IsRevoked:
		l.isPending = true
		if f.Revocations != "pending" {
			return "expected the event pending"
		}
	case !f.IsRevoked:
		return "expected to be revoked"
	}
	return ""
}

// audit holds Keystone's trusts, the events and the actions against what should be.
func (m *month) audit(t *testing.T) {
	t.Helper()
	kept, count := []string{}, map[string]int{}
	for _, l := range m.all {
		if l.kind == trust && l.isActive() {
			kept = append(kept, l.inKeystone)
		}
		count[l.events]++
	}
	var have []string
	for _, o := range m.owners {
		have = append(have, o.TrustsForAdmin(t)...)
	}
	slices.Sort(kept)
	slices.Sort(have)
	if !slices.Equal(kept, have) {
		t.Errorf("Keystone has the trusts\n%v, expected\n%v", have, kept)
	}
	rows, pending := m.read(t), 0
	for _, l := range m.all {
		f := rows[l.id]
		if f.Seq != f.LastSeq || int(f.Seq) != len(strings.Fields(f.Events+" "+f.Revocations)) {
			t.Errorf("%s: the numbers of its events have gaps: %+v", l, f)
		}
		if f.Revocations != "pending done" && (l.isPending || f.Revocations != "") {
			t.Errorf("%s: the events of its revocation are %q", l, f.Revocations)
		}
		if l.isPending {
			pending++
		}
	}
	t.Logf("%v; %d trusts could not be deleted at first; %d kills", count, pending, m.killed)
	odd := testkit.Scalar[int](t, m.pool, `select count(*)::int from actions a join connections c on c.id = a.connection_id
where a.status <> 'failed' or c.status = 'active' and a.problem->>'code' <> 'not_found'`)
	if odd != 0 {
		t.Errorf("%d actions have not ended as they should", odd)
	}
}
