package postgres_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// aged writes rows that are old, under names.
type aged struct {
	t     *testing.T
	conn  *pgx.Conn
	names map[uuid.UUID]string
}

func (a aged) exec(sql string, args ...any) {
	a.t.Helper()
	if _, err := a.conn.Exec(a.t.Context(), sql, args...); err != nil {
		a.t.Fatal(err)
	}
}

func (a aged) order(name, status, age string, claimed any, instances ...func(uuid.NullUUID)) {
	a.t.Helper()
	id := uuid.New()
	a.names[id] = name
	a.exec(anOld, id, status, age, claimed)
	for _, add := range instances {
		add(uuid.NullUUID{UUID: id, Valid: true})
	}
}

// instance gives what adds one to an order, or to none. more is one of "", "refused", "undecided", "disconnected",
// "through".
func (a aged) instance(name string, state domain.InstanceState, age, more string) func(uuid.NullUUID) {
	return func(order uuid.NullUUID) {
		a.t.Helper()
		id := uuid.New()
		a.names[id] = name
		var server, problem, connection, disconnected any = uuid.NewString(), nil, nil, nil
		switch more {
		case "refused":
			server, problem = nil, &domain.Problem{Code: "quota"}
		case "undecided":
			server = nil
		case "disconnected":
			disconnected = time.Now().Add(-time.Hour)
		case "through": // a connection, whose quota it counts for
			disconnected, connection = time.Now().Add(-time.Hour), uuid.New()
		}
		a.exec(anServer, id, order, server, state, problem, connection, disconnected, age)
	}
}

func (a aged) runs(name string) {
	a.t.Helper()
	a.exec(`
with c as (insert into connections (id, project_id, domain_id, user_id, kind, delegation_id, acts_as, actions,
  usable_by, status, expires_at)
           values (gen_random_uuid(), 'p1', 'd', 'u', 'trust', 'x', '{}', '{}', '{}', 'active', now()) returning id)
insert into actions (project_id, id, connection_id, instance_id, user_id, verb) select 'p1', gen_random_uuid(), id, $1,
  'u', 'stop' from c`, a.id(name))
}

func (a aged) id(name string) uuid.UUID {
	a.t.Helper()
	for id, n := range a.names {
		if n == name {
			return id
		}
	}
	a.t.Fatalf("nothing has the name %q", name)
	return uuid.Nil
}

func (a aged) left() (names []string) {
	a.t.Helper()
	rows, _ := a.conn.Query(a.t.Context(), "select id from orders union all select id from instances")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		a.t.Fatal(err)
	}
	for _, id := range ids {
		names = append(names, a.names[id])
	}
	return names
}
