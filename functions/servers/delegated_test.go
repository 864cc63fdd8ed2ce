package servers

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// lent is a connection of the project "owner", through which the user of the cloud "alt" may act. It is written as the function
// connections does; here nobody ever acts through it.
type lent struct {
	domain.Connection

	app      *testkit.Client // as alt
	conn     *pgx.Conn
	database string
	woken    func() []string
}

const owner = "owner"

func lend(t *testing.T, change func(*domain.Connection)) lent {
	t.Helper()
	database := testkit.Database(t)
	wakes, woken := waker(t)
	l := lent{database: database, conn: testkit.Connect(t, database), woken: woken}
	l.app = testkit.Start(t, testkit.Env(t, database, map[string]string{"WAKE_URL": wakes}), Function)
	p := testkit.NewProject(t)
	l.app = l.app.As(p.Token(t))
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	actions := []domain.Permission{domain.MayConnect, domain.MayStart, domain.MayStop, domain.MayReboot, domain.MayDeploy, domain.MayDeallocate}
	c := domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: owner, DomainID: "d1", UserID: "u1", Kind: domain.TrustConnection, DelegationID: "t", Actions: actions,
		UsableBy: []string{p.UserID}, Flavors: []domain.Flavor{}, ExpiresAt: time.Now().Add(time.Hour),
	}
	if change != nil {
		change(&c)
	}
	if l.Connection, err = (postgres.Connections{DB: db}).Create(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return l
}

// instance writes one that is managed through the connection, and gives its id and its server's.
func (l lent) instance(t *testing.T, state domain.InstanceState, origin string) (id, server string) {
	t.Helper()
	id, server = uuid.NewString(), uuid.NewString()
	_, err := l.conn.Exec(t.Context(), `
insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, spec, addresses, connection_id, created_at)
values ($1, $2, 0, 'web', $3, $4, 'SHUTOFF', $5, '{"flavor_id":"f1","flavor_name":"small","vcpus":2,"ram_mb":2048,"image_id":"i1","network_ids":[]}',
        '[{"network":"n","ip":"10.0.0.7","version":4,"type":"fixed"}]', $6, clock_timestamp())`, owner, id, server, state, origin, l.ID)
	if err != nil {
		t.Fatal(err)
	}
	return id, server
}

func (l lent) act(t *testing.T, id, body string) (a testkit.Answer, action string) {
	t.Helper()
	a = l.app.Post(t, "/v1/servers/"+id+"/actions", fmt.Sprintf(body, l.ID))
	var out struct {
		ActionID string `json:"action_id"`
	}
	a.JSON(t, &out)
	return a, out.ActionID
}

// stored is the row of an action: what was asked, of which instance.
func (l lent) stored(t *testing.T) []string {
	t.Helper()
	rows, _ := l.conn.Query(t.Context(), "select project_id || ' ' || verb || case when hard then ' hard' else '' end || ' ' || instance_id || ' ' || status from actions order by created_at")
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestActionsThroughAConnection are taken down for run-connections, which is woken, and can be followed.
func TestActionsThroughAConnection(t *testing.T) {
	t.Parallel()
	l := lend(t, nil)
	id, server := l.instance(t, domain.InstanceStopped, domain.OriginLaunched)
	connected, _ := l.instance(t, domain.InstanceStopped, domain.OriginConnected)
	gone, _ := l.instance(t, domain.InstanceDeleted, domain.OriginLaunched)

	a, action := l.act(t, id, `{"action":"start","connection_id":%q}`)
	var done acted
	if a.JSON(t, &done); a.Status != 202 || !done.Changed || done.State != domain.InstanceStopped || action == "" {
		t.Errorf("start: %d %s", a.Status, a.Body)
	}
	path := "/v1/servers/actions/" + action + "?connection_id=" + l.ID.String()
	var shown struct {
		ID, Action, Status string
		InstanceID         string `json:"instance_id"`
	}
	l.app.Get(t, path).JSON(t, &shown)
	if shown.ID != action || shown.Action != "start" || shown.Status != "running" || shown.InstanceID != id {
		t.Errorf("it is shown as %+v", shown)
	}
	if _, err := l.conn.Exec(t.Context(), `update actions set status = 'failed', problem = '{"code":"conflict","detail":"nova: no"}'`); err != nil {
		t.Fatal(err)
	}
	if a := l.app.Get(t, path); !strings.Contains(string(a.Body), `"status":"failed","error":{"code":"conflict","detail":"nova: no"}`) {
		t.Errorf("failed it is shown as %s", a.Body)
	}
	testkit.Eventually(t, 10*time.Second, "both functions are woken", func() bool {
		return slices.Contains(l.woken(), "/run-connections") && slices.Contains(l.woken(), "/deliver-events")
	})
	if a, _ := l.act(t, server, `{"action":"reboot","hard":true,"connection_id":%q}`); a.Status != 202 {
		t.Errorf("hard reboot by the server's id: %d %s", a.Status, a.Body)
	}
	if a, _ := l.act(t, connected, `{"action":"delete","connection_id":%q}`); a.Status != 409 || !testkit.Names(t, a, "force") {
		t.Errorf("delete of what was there before: %d %s", a.Status, a.Body)
	}
	if a := l.app.Do(t, http.MethodDelete, "/v1/servers/"+connected+"?force=true&connection_id="+l.ID.String(), ""); a.Status != 202 {
		t.Errorf("with force: %d %s", a.Status, a.Body)
	}
	if a, _ := l.act(t, gone, `{"action":"delete","connection_id":%q}`); a.Status != 200 {
		t.Errorf("delete of what is gone: %d %s", a.Status, a.Body)
	}
	if a, _ := l.act(t, gone, `{"action":"start","connection_id":%q}`); a.Status != 409 {
		t.Errorf("start of what is gone: %d %s", a.Status, a.Body)
	}
	if a, _ := l.act(t, uuid.NewString(), `{"action":"start","connection_id":%q}`); a.Status != 404 {
		t.Errorf("of what there is not: %d %s", a.Status, a.Body)
	}
	many := l.app.Post(t, "/v1/servers/actions", fmt.Sprintf(`{"action":"stop","connection_id":%q,"ids":[%q,%q]}`, l.ID, id, uuid.NewString()))
	if many.Status != 202 || strings.Count(string(many.Body), "action_id") != 1 || !strings.Contains(string(many.Body), "not_found") {
		t.Errorf("many: %d %s", many.Status, many.Body)
	}
	if a := l.app.Post(t, "/v1/servers/actions", fmt.Sprintf(`{"action":"stop","connection_id":%q,"ids":[%q,%q]}`, l.ID, id, server)); a.Status != 400 {
		t.Errorf("the same twice: %d %s", a.Status, a.Body)
	}
	want := []string{owner + " start " + id + " failed", owner + " reboot hard " + id + " running", owner + " delete " + connected + " running", owner + " stop " + id + " running"}
	if got := l.stored(t); !slices.Equal(got, want) {
		t.Errorf("taken down was %q, want %q", got, want)
	}
	if n := testkit.Scalar[int](t, l.conn, "select count(*)::int from events where type = $1 and connection_id = $2", domain.ActionEvent, l.ID); n != 4 {
		t.Errorf("%d events tell of them", n)
	}
}

// TestShownThroughAConnection is what was last seen, and nothing but what is managed through it.
func TestShownThroughAConnection(t *testing.T) {
	t.Parallel()
	l := lend(t, nil)
	var servers []string
	for range 3 {
		_, server := l.instance(t, domain.InstanceStopped, domain.OriginLaunched)
		servers = append([]string{server}, servers...)
	}
	theirs := uuid.NewString() // of the same project, and no business of ours
	if _, err := l.conn.Exec(t.Context(), `
insert into instances (project_id, id, position, name, server_id, state, origin) values ($1, $2::text::uuid, 0, 'x', $2::text, 'active', 'launched')`, owner, theirs); err != nil {
		t.Fatal(err)
	}
	var listed []string
	path := "/v1/servers?limit=2&connection_id=" + l.ID.String()
	for pages := 1; ; pages++ {
		var page listAnswer
		l.app.Get(t, path).JSON(t, &page)
		for _, s := range page.Servers {
			listed = append(listed, s.ID)
		}
		if page.Next == nil || pages > 3 {
			break
		}
		path = *page.Next
	}
	if !slices.Equal(listed, servers) {
		t.Errorf("listed are %v, want %v", listed, servers)
	}
	var one domain.Server
	l.app.Get(t, "/v1/servers/"+servers[0]+"?connection_id="+l.ID.String()).JSON(t, &one)
	if one.ID != servers[0] || one.Name != "web" || one.Status != "SHUTOFF" || one.Flavor.VCPUs != 2 || one.Flavor.Name != "small" || one.Image.ID != "i1" ||
		len(one.Addresses) != 1 || one.Instance.State != domain.InstanceStopped || one.Instance.ConnectionID == nil || *one.Instance.ConnectionID != l.ID {
		t.Errorf("one is %+v %+v", one, one.Instance)
	}
	for path, want := range map[string]int{
		"/v1/servers/" + theirs + "?connection_id=" + l.ID.String():                      404,
		"/v1/servers/" + servers[0] + "?connection_id=" + uuid.NewString():               404,
		"/v1/servers?connection_id=" + uuid.NewString():                                  404,
		"/v1/servers?connection_id=x":                                                    400,
		"/v1/servers?status=ACTIVE&connection_id=" + l.ID.String():                       400,
		"/v1/servers/actions/" + uuid.NewString() + "?connection_id=" + l.ID.String():    404,
		"/v1/servers/actions/x?connection_id=" + l.ID.String():                           404,
		"/v1/servers/actions/" + uuid.NewString():                                        400,
		"/v1/servers/actions/" + uuid.NewString() + "?connection_id=" + uuid.NewString(): 404,
	} {
		if a := l.app.Get(t, path); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", path, a.Status, a.Body, want)
		}
	}
	// Let go, at once and without any permission, it is shown no more.
	if _, err := l.conn.Exec(t.Context(), "update connections set actions = '{reboot}'"); err != nil {
		t.Fatal(err)
	}
	let := "/v1/servers/" + servers[0] + "?mode=disconnect&connection_id=" + l.ID.String()
	for range 2 {
		if a := l.app.Do(t, http.MethodDelete, let, ""); a.Status != 204 {
			t.Errorf("let go: %d %s", a.Status, a.Body)
		}
	}
	if a := l.app.Get(t, "/v1/servers/"+servers[0]+"?connection_id="+l.ID.String()); a.Status != 404 {
		t.Errorf("after that: %d", a.Status)
	}
	if a := l.app.Do(t, http.MethodDelete, "/v1/servers/"+theirs+"?mode=disconnect&connection_id="+l.ID.String(), ""); a.Status != 404 {
		t.Errorf("another's let go: %d", a.Status)
	}
}

// TestWhatAConnectionRefuses: strangers see none; who may act through it is told what it permits, and that it has ended.
func TestWhatAConnectionRefuses(t *testing.T) {
	t.Parallel()
	l := lend(t, func(c *domain.Connection) { c.Actions = []domain.Permission{domain.MayStart, domain.MayStop} })
	id, _ := l.instance(t, domain.InstanceStopped, domain.OriginLaunched)
	start, connect := `{"action":"start","connection_id":%q}`, fmt.Sprintf(`{"server_id":%q,"connection_id":%q}`, uuid.NewString(), l.ID)
	deploy := `{"action":"deploy","image":"agent:1","confirm_rebuild":true,"connection_id":%q}`
	for _, body := range []string{`{"action":"delete","connection_id":%q}`, `{"action":"reboot","connection_id":%q}`, deploy} {
		if a, _ := l.act(t, id, body); a.Status != 403 || !strings.Contains(string(a.Body), "only to start, stop") {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	if a := l.app.Post(t, "/v1/servers", connect); a.Status != 403 {
		t.Errorf("connect: %d %s", a.Status, a.Body)
	}
	stranger := l
	stranger.app = l.app.As(testkit.Token(t, "demo"))
	for range 2 {
		if a, _ := stranger.act(t, id, start); a.Status != 404 {
			t.Errorf("a stranger: %d %s", a.Status, a.Body)
		}
		if a := stranger.app.Do(t, http.MethodDelete, "/v1/servers/"+id+"?mode=disconnect&connection_id="+l.ID.String(), ""); a.Status != 404 {
			t.Errorf("a stranger lets go: %d %s", a.Status, a.Body)
		}
		if a := stranger.app.Post(t, "/v1/servers", connect); a.Status != 404 {
			t.Errorf("a stranger connects: %d %s", a.Status, a.Body)
		}
		if a := stranger.app.Get(t, "/v1/servers/"+id+"?connection_id="+l.ID.String()); a.Status != 404 {
			t.Errorf("a stranger looks: %d %s", a.Status, a.Body)
		}
	}
	for status, code := range map[string]string{"expired": "forbidden", "lost": "delegation_lost"} {
		if _, err := l.conn.Exec(t.Context(), "update connections set status = $1, reason = 'gone'", status); err != nil {
			t.Fatal(err)
		}
		if a, _ := l.act(t, id, start); a.Status != 403 || !strings.Contains(string(a.Body), `"code":"`+code+`"`) {
			t.Errorf("%s: %d %s", status, a.Status, a.Body)
		}
	}
	if got := l.stored(t); len(got) != 0 {
		t.Errorf("taken down was %q", got)
	}
}

// TestConnectThroughAConnection is an action, unless it is so already.
func TestConnectThroughAConnection(t *testing.T) {
	t.Parallel()
	l := lend(t, nil)
	server := uuid.NewString()
	status, asked := link(t, l.app, `{"server_id":%q,"connection_id":%q}`, server, l.ID)
	if status != 202 || asked.ServerID != server || asked.ActionID == nil || asked.ConnectionID == nil || *asked.ConnectionID != l.ID {
		t.Errorf("connect: %d %+v", status, asked)
	}
	if got := testkit.Scalar[string](t, l.conn, "select verb || ' ' || server_id || ' ' || instance_id from actions"); got != "connect "+server+" "+asked.ID.String() {
		t.Errorf("taken down was %s", got)
	}
	id, known := l.instance(t, domain.InstanceActive, domain.OriginConnected)
	status, have := link(t, l.app, `{"server_id":%q,"connection_id":%q}`, known, l.ID)
	if status != 200 || have.ID.String() != id || have.ActionID != nil || *have.ConnectionID != l.ID {
		t.Errorf("again: %d %+v", status, have)
	}
}

// TestDeployThroughAConnection: what it takes is stored so that only run-connections can read it.
func TestDeployThroughAConnection(t *testing.T) {
	t.Parallel()
	l := lend(t, nil)
	id, _ := l.instance(t, domain.InstanceStopped, domain.OriginLaunched)
	image := uuid.New()
	a, action := l.act(t, id, `{"action":"deploy","connection_id":%q,"image":"registry.example.com/agent:7","env":{"A":"canary-env"},"join_token":"canary-join",
"registry":{"username":"robot","password":"canary-password"},"command":["canary-command"],"server_image":"`+image.String()+`","confirm_rebuild":true}`)
	if a.Status != 202 || action == "" {
		t.Fatalf("deploy: %d %s", a.Status, a.Body)
	}
	if dump := testkit.Dump(t, l.database); strings.Contains(dump, "canary") || strings.Contains(dump, "cloud-config") {
		t.Error("the database holds a secret in clear")
	}
	keys, err := seal.ConnectionOpenConfig{ConnectionPrivateKey: testkit.ConnectionPrivateKey}.Keys()
	if err != nil {
		t.Fatal(err)
	}
	payload := testkit.Scalar[[]byte](t, l.conn, "select payload from actions where id = $1", action)
	opened, err := keys.Open("action/"+owner+"/"+action, payload)
	if err != nil {
		t.Fatal(err)
	}
	var d domain.DelegatedDeploy
	if err := json.Unmarshal([]byte(opened.Reveal()), &d); err != nil || !strings.HasPrefix(d.UserData, "#cloud-config\n") || d.ImageID != image.String() {
		t.Errorf("%v %+v", err, d)
	}
	if left := time.Until(d.NotAfter); left < 25*time.Minute || left > 28*time.Minute {
		t.Errorf("it may be rebuilt for %s more", left)
	}
	var shown domain.Server
	l.app.Get(t, "/v1/servers/"+id+"?connection_id="+l.ID.String()).JSON(t, &shown)
	if g := shown.Instance.Agent; g == nil || g.DeploymentID != d.ID || g.Image != "registry.example.com/agent:7" || g.ReadyAt != nil {
		t.Errorf("its agent is %+v", g)
	}
}
