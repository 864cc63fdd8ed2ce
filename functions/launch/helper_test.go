package launch

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// body is a request for the sandbox's smallest flavor, with changes.
func body(t *testing.T, changes object) string {
	t.Helper()
	f := testkit.Sandbox(t)
	in := object{"name": "server", "flavor": f.Flavor, "image": f.Image, "networks": []string{f.Network}}
	maps.Copy(in, changes)
	maps.DeleteFunc(in, func(_ string, v any) bool { return v == nil })
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func start(t *testing.T) (*testkit.Project, *testkit.Client, string) {
	t.Helper()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	return p, testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t)), database
}

// insertOrder stores an order without requesting servers from Nova.
const insertOrder = `
with o as (
    insert into orders (project_id, id, domain_id, user_id, body_sha256, spec, status, connection_id)
    values ($1, $2, '', '', '', '{}', $3, nullif($4, '00000000-0000-0000-0000-000000000000'::uuid)) returning *
)
insert into instances (project_id, id, order_id, position, name, state, origin)
select project_id, gen_random_uuid(), id, 0, 'old', 'requested', 'launched' from o`

func ids(page OrderPage) (ids []string) {
	for _, o := range page.Orders {
		ids = append(ids, o.ID.String())
	}
	return ids
}

type object = map[string]any

// delegatedCase is a connection of one project, and a caller of another project who is authorized to use it.
type delegatedCase struct {
	owner, caller *testkit.Project
	domain.Connection
	app      *testkit.Client // as the caller
	database string
	conn     *pgx.Conn
	woken    func(function string) int
}

// delegated makes a connection row. Nothing was delegated in Keystone: these tests see what happens before that is
// needed.
func delegated(t *testing.T, change func(c *domain.Connection)) delegatedCase {
	t.Helper()
	d := delegatedCase{owner: testkit.BorrowProject(t), caller: testkit.BorrowProject(t), database: testkit.Database(t)}
	d.conn = testkit.Connect(t, d.database)
	woken := testkit.NewWakes(t)
	d.woken = woken.Count
	env := testkit.Env(t, d.database, map[string]string{"WAKE_URL": woken.URL})
	d.app = testkit.Start(t, env, Function).As(d.caller.Token(t))
	three := 3
	flavors := []domain.Flavor{
		{ID: "f2", Name: "small", VCPUs: 1, RAMMB: 1024, DiskGB: 5},
		{ID: "f1", Name: "tiny", VCPUs: 1, RAMMB: 512, DiskGB: 1},
		{ID: "f0", Name: "diskless", VCPUs: 1, RAMMB: 128},
		{ID: "f3", Name: "large", VCPUs: 4, RAMMB: 8192, DiskGB: 80},
	}
	c := domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: d.owner.ID, DomainID: d.owner.DomainID, UserID: d.owner.UserID,
		Kind:         domain.TrustConnection,
		DelegationID: uuid.NewString(), Quota: domain.ConnectionQuota{Instances: &three},
		Actions:  []domain.Permission{domain.MayAllocate, domain.MayStart},
		UsableBy: []string{d.caller.UserID}, ExpiresAt: time.Now().Add(time.Hour), Flavors: flavors,
	}
	if change != nil {
		change(&c)
	}
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(d.database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if d.Connection, err = (postgres.Connections{DB: db}).Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return d
}

// body is a request through the connection, with changes.
func (d delegatedCase) body(t *testing.T, changes object) string {
	t.Helper()
	in := object{
		"connection_id": d.ID.String(), "name": "web", "flavor": "tiny", "image": "an image",
		"networks": []string{"a network"},
	}
	for k, v := range changes {
		if in[k] = v; v == nil {
			delete(in, k)
		}
	}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (d delegatedCase) orders(t *testing.T) int {
	t.Helper()
	return testkit.Scalar[int](t, d.conn, "select count(*)::int from orders")
}

// payload decrypts what is stored with an order.
func (d delegatedCase) payload(t *testing.T, order uuid.UUID) domain.DelegatedOrder {
	t.Helper()
	keys, err := seal.ParsePrivateKeys(testkit.ConnectionPrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	sealed := testkit.Scalar[[]byte](t, d.conn, "select payload from orders where id = $1", order)
	text, err := keys.Open(domain.Order{ProjectID: d.ProjectID, ID: order}.SealedFor(), sealed)
	if err != nil {
		t.Fatal(err)
	}
	var payload domain.DelegatedOrder
	if err := json.Unmarshal([]byte(text.Reveal()), &payload); err != nil {
		t.Fatal(err)
	}
	return payload
}

// checkRows checks the stored rows of an order: all are of the connection's project, but for the callback.
func (d delegatedCase) checkRows(t *testing.T, order Order) {
	t.Helper()
	for _, tc := range []struct{ sql, want string }{
		{
			"select row(project_id, domain_id, user_id, connection_id, status, claim_id) from orders where id = $1",
			fmt.Sprintf("(%s,%s,%s,%s,running,)", d.ProjectID, d.DomainID, d.caller.UserID, d.ID),
		},
		{
			`select string_agg(row(project_id, connection_id, remote, state)::text, ' ' order by position)
			from instances where order_id = $1`,
			fmt.Sprintf("(%[1]s,%[2]s,f,requested) (%[1]s,%[2]s,f,requested)", d.ProjectID, d.ID),
		},
		{
			`select string_agg(concat_ws(' ', spec->>'flavor_id', spec->>'vcpus', spec->>'ram_mb', spec->>'disk_gb',
				spec->>'zone', spec->>'metadata', spec->>'security_groups', spec->>'key_name'), '; ' order by position)
			from instances where order_id = $1`,
			fmt.Sprintf(`f1 1 512 1 z {"role": "web"} ["g"] cloudfn-%[1]s; `+
				`f2 1 1024 5 z {"role": "web"} ["g"] cloudfn-%[1]s`, order.ID),
		},
		{
			"select row(project_id, user_id, of_project, connection_id) from callbacks where order_id = $1",
			fmt.Sprintf("(%s,%s,%s,%s)", d.caller.ID, d.caller.UserID, d.ProjectID, d.ID),
		},
		{
			"select row(count(*), count(connection_id), count(distinct project_id)) from events where order_id = $1",
			"(3,3,1)",
		},
		{
			`select row(count(*), min(event_project)) from deliveries
			where callback_id = (select id from callbacks where order_id = $1)`,
			fmt.Sprintf("(3,%s)", d.ProjectID),
		},
	} {
		if got := testkit.Scalar[string](t, d.conn, "select ("+tc.sql+")::text", order.ID); got != tc.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tc.sql, got, tc.want)
		}
	}
}

func exec(t *testing.T, conn testkit.Querier, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
