package servers

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// delegated is a connection of the project "owner" and a user of it from another project. The function connections
// would store the same; nothing here uses the delegation itself.
type delegated struct {
	domain.Connection

	app      *testkit.Client // of the user
	conn     *pgx.Conn
	database string
	woken    func() []string
}

const owner = "owner"

func delegate(t *testing.T, change func(*domain.Connection)) delegated {
	t.Helper()
	database := testkit.Database(t)
	wakes, woken := waker(t)
	p := testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"WAKE_URL": wakes}), Function).As(p.Token(t))
	d := delegated{app: app, database: database, conn: testkit.Connect(t, database), woken: woken}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	c := domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: owner, DomainID: "d1", UserID: "u1", Kind: domain.TrustConnection,
		DelegationID: "t", UsableBy: []string{p.UserID}, Flavors: []domain.Flavor{},
		ExpiresAt: time.Now().Add(time.Hour),
		Actions: []domain.Permission{
			domain.MayConnect, domain.MayStart, domain.MayStop, domain.MayReboot, domain.MayDeploy,
			domain.MayDeallocate,
		},
	}
	if change != nil {
		change(&c)
	}
	if d.Connection, err = (postgres.Connections{DB: db}).Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return d
}

// instance stores an instance that the connection manages, and returns its id and its server's.
func (d delegated) instance(t *testing.T, state domain.InstanceState, origin string) (id, server string) {
	t.Helper()
	id, server = uuid.NewString(), uuid.NewString()
	d.exec(t, `
insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, connection_id, created_at,
                       spec, addresses)
values ($1, $2, 0, 'web', $3, $4, 'SHUTOFF', $5, $6, clock_timestamp(),
        '{"flavor_id":"f1","flavor_name":"small","vcpus":2,"ram_mb":2048,"image_id":"i1","network_ids":[]}',
        '[{"network":"n","ip":"10.0.0.7","version":4,"type":"fixed"}]')`, owner, id, server, state, origin, d.ID)
	return id, server
}

func (d delegated) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := d.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// act sends an action through the connection; body has a %q for the connection's id.
func (d delegated) act(t *testing.T, id, body string) (a testkit.Answer, action string) {
	t.Helper()
	a = d.app.Post(t, "/v1/servers/"+id+"/actions", fmt.Sprintf(body, d.ID))
	var out struct {
		ActionID string `json:"action_id"`
	}
	a.JSON(t, &out)
	return a, out.ActionID
}

// remove sends DELETE through the connection.
func (d delegated) remove(t *testing.T, id, query string) testkit.Answer {
	t.Helper()
	return d.app.Do(t, http.MethodDelete, "/v1/servers/"+id+"?"+query+"&connection_id="+d.ID.String(), "")
}

// path is a path with the connection's id in its query.
func (d delegated) path(path string) string { return path + "?connection_id=" + d.ID.String() }

// stored are the actions that are stored, each with its instance and status.
func (d delegated) stored(t *testing.T) []string {
	t.Helper()
	rows, _ := d.conn.Query(t.Context(), `
select project_id || ' ' || verb || case when hard then ' hard' else '' end || ' ' || instance_id || ' ' || status
from actions order by created_at`)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}
