package servers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestConnectedActions are stored for run-connections, which is woken, and can be read.
func TestConnectedActions(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	id, server := d.instance(t, domain.InstanceStopped, domain.OriginLaunched)
	connected, _ := d.instance(t, domain.InstanceStopped, domain.OriginConnected)
	deleted, _ := d.instance(t, domain.InstanceDeleted, domain.OriginLaunched)

	a, action := d.act(t, id, `{"action":"start","connection_id":%q}`)
	var done ServerActed
	if a.JSON(t, &done); a.Status != 202 || !done.Changed || done.State != domain.InstanceStopped || action == "" {
		t.Errorf("start: %d %s", a.Status, a.Body)
	}
	path := d.path("/v1/servers/actions/" + action)
	var shown struct {
		ID, Action, Status string
		InstanceID         string `json:"instance_id"`
	}
	d.app.Get(t, path).JSON(t, &shown)
	if shown.ID != action || shown.Action != "start" || shown.Status != "running" || shown.InstanceID != id {
		t.Errorf("the action is %+v", shown)
	}
	const problem = `{"code":"conflict","detail":"nova: no"}`
	d.exec(t, `update actions set status = 'failed', problem = '`+problem+`'`)
	if a := d.app.Get(t, path); !strings.Contains(string(a.Body), `"status":"failed","error":`+problem) {
		t.Errorf("the failed action is %s", a.Body)
	}
	testkit.Eventually(t, 10*time.Second, "both functions are woken", func() bool {
		return slices.Contains(d.woken(), "/run-connections") && slices.Contains(d.woken(), "/deliver-events")
	})
	if a, _ := d.act(t, server, `{"action":"reboot","hard":true,"connection_id":%q}`); a.Status != 202 {
		t.Errorf("hard reboot by the server's id: %d %s", a.Status, a.Body)
	}
	a, _ = d.act(t, connected, `{"action":"delete","connection_id":%q}`)
	if a.Status != 409 || !testkit.Names(t, a, "force") {
		t.Errorf("delete of a connected server: %d %s", a.Status, a.Body)
	}
	if a := d.remove(t, connected, "force=true"); a.Status != 202 {
		t.Errorf("delete with force: %d %s", a.Status, a.Body)
	}
	for _, tc := range []struct {
		id, action string
		status     int
	}{{deleted, "delete", 200}, {deleted, "start", 409}, {uuid.NewString(), "start", 404}} {
		if a, _ := d.act(t, tc.id, `{"action":"`+tc.action+`","connection_id":%q}`); a.Status != tc.status {
			t.Errorf("%s: got %d %s, want %d", tc.action, a.Status, a.Body, tc.status)
		}
	}
	stop := func(other string) testkit.Answer {
		body := fmt.Sprintf(`{"action":"stop","connection_id":%q,"ids":[%q,%q]}`, d.ID, id, other)
		return d.app.Post(t, "/v1/servers/actions", body)
	}
	many := stop(uuid.NewString())
	text := string(many.Body)
	if many.Status != 202 || strings.Count(text, "action_id") != 1 || !strings.Contains(text, "not_found") {
		t.Errorf("many: %d %s", many.Status, text)
	}
	if a := stop(server); a.Status != 400 {
		t.Errorf("the same server twice: %d %s", a.Status, a.Body)
	}
	want := []string{
		owner + " start " + id + " failed", owner + " reboot hard " + id + " running",
		owner + " delete " + connected + " running", owner + " stop " + id + " running",
	}
	if got := d.stored(t); !slices.Equal(got, want) {
		t.Errorf("stored are %q, want %q", got, want)
	}
	const countEvents = "select count(*)::int from events where type = $1 and connection_id = $2"
	if n := testkit.Scalar[int](t, d.conn, countEvents, domain.ActionEvent, d.ID); n != 4 {
		t.Errorf("the actions have %d events", n)
	}
}

// TestServersOfAConnection are those that it manages, as they are stored, until they are disconnected.
func TestServersOfAConnection(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	var servers []string
	for range 3 {
		_, server := d.instance(t, domain.InstanceStopped, domain.OriginLaunched)
		servers = append([]string{server}, servers...)
	}
	others := uuid.NewString() // of the same project, but not managed through the connection
	d.exec(t, `
insert into instances (project_id, id, position, name, server_id, state, origin)
values ($1, $2::text::uuid, 0, 'x', $2::text, 'active', 'launched')`, owner, others)
	var listed []string
	path := d.path("/v1/servers") + "&limit=2"
	for pages := 1; ; pages++ {
		var page ServerPage
		d.app.Get(t, path).JSON(t, &page)
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
	one := "/v1/servers/" + servers[0]
	var s domain.Server
	d.app.Get(t, d.path(one)).JSON(t, &s)
	if s.ID != servers[0] || s.Name != "web" || s.Status != "SHUTOFF" || s.Flavor.VCPUs != 2 ||
		s.Flavor.Name != "small" || s.Image.ID != "i1" || len(s.Addresses) != 1 ||
		s.Instance.State != domain.InstanceStopped ||
		s.Instance.ConnectionID == nil || *s.Instance.ConnectionID != d.ID {
		t.Errorf("got %+v %+v", s, s.Instance)
	}
	unknown := uuid.NewString()
	for path, want := range map[string]int{
		d.path("/v1/servers/" + others):                                  404,
		one + "?connection_id=" + unknown:                                404,
		"/v1/servers?connection_id=" + unknown:                           404,
		"/v1/servers?connection_id=x":                                    400,
		"/v1/servers?connection_id=" + uuid.Nil.String():                 400,
		d.path("/v1/servers") + "&status=ACTIVE":                         400,
		d.path("/v1/servers/actions/" + unknown):                         404,
		d.path("/v1/servers/actions/x"):                                  404,
		"/v1/servers/actions/" + unknown:                                 400,
		"/v1/servers/actions/" + unknown + "?connection_id=" + owner:     400,
		"/v1/servers/actions/" + unknown + "?connection_id=" + unknown:   404,
		d.path("/v1/servers/history/"+others) + "&limit=1&marker=400000": 404,
	} {
		if a := d.app.Get(t, path); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", path, a.Status, a.Body, want)
		}
	}
	d.exec(t, "update connections set actions = '{reboot}'") // to disconnect needs no permission
	for range 2 {
		if a := d.remove(t, servers[0], "mode=disconnect"); a.Status != 204 {
			t.Errorf("disconnect: %d %s", a.Status, a.Body)
		}
	}
	if a := d.app.Get(t, d.path(one)); a.Status != 404 {
		t.Errorf("a disconnected server: %d", a.Status)
	}
	if a := d.remove(t, others, "mode=disconnect"); a.Status != 404 {
		t.Errorf("disconnect of a server that the connection does not manage: %d", a.Status)
	}
}

// TestConnectionRejects what it does not permit, other users, and everything after its end.
func TestConnectionRejects(t *testing.T) {
	t.Parallel()
	d := delegate(t, func(c *domain.Connection) { c.Actions = []domain.Permission{domain.MayStart, domain.MayStop} })
	id, _ := d.instance(t, domain.InstanceStopped, domain.OriginLaunched)
	start := `{"action":"start","connection_id":%q}`
	connect := fmt.Sprintf(`{"server_id":%q,"connection_id":%q}`, uuid.NewString(), d.ID)
	for _, action := range []string{`"delete"`, `"reboot"`, `"deploy","image":"agent:1","confirm_rebuild":true`} {
		a, _ := d.act(t, id, `{"action":`+action+`,"connection_id":%q}`)
		if a.Status != 403 || !strings.Contains(string(a.Body), "only to start, stop") {
			t.Errorf("%s: %d %s", action, a.Status, a.Body)
		}
	}
	if a := d.app.Post(t, "/v1/servers", connect); a.Status != 403 {
		t.Errorf("connect: %d %s", a.Status, a.Body)
	}
	other := d
	other.app = d.app.As(testkit.Token(t, "demo"))
	for what, send := range map[string]func() testkit.Answer{
		"start":      func() testkit.Answer { a, _ := other.act(t, id, start); return a },
		"disconnect": func() testkit.Answer { return other.remove(t, id, "mode=disconnect") },
		"connect":    func() testkit.Answer { return other.app.Post(t, "/v1/servers", connect) },
		"show":       func() testkit.Answer { return other.app.Get(t, d.path("/v1/servers/"+id)) },
	} {
		if a := send(); a.Status != 404 {
			t.Errorf("%s by another user: %d %s", what, a.Status, a.Body)
		}
	}
	for status, code := range map[string]string{"expired": "forbidden", "lost": "delegation_lost"} {
		d.exec(t, "update connections set status = $1, reason = 'gone'", status)
		if a, _ := d.act(t, id, start); a.Status != 403 || !strings.Contains(string(a.Body), `"code":"`+code+`"`) {
			t.Errorf("%s: %d %s", status, a.Status, a.Body)
		}
	}
	if got := d.stored(t); len(got) != 0 {
		t.Errorf("stored are %q", got)
	}
}

// TestConnectByConnection stores an action, unless the connection manages the server already.
func TestConnectByConnection(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	server := uuid.NewString()
	status, made := link(t, d.app, `{"server_id":%q,"connection_id":%q}`, server, d.ID)
	if status != 202 || made.ServerID != server || made.ActionID == nil || *made.ConnectionID != d.ID {
		t.Errorf("connect: %d %+v", status, made)
	}
	const action = "select verb || ' ' || server_id || ' ' || instance_id from actions"
	if got := testkit.Scalar[string](t, d.conn, action); got != "connect "+server+" "+made.ID.String() {
		t.Errorf("stored is %s", got)
	}
	id, managed := d.instance(t, domain.InstanceActive, domain.OriginConnected)
	status, known := link(t, d.app, `{"server_id":%q,"connection_id":%q}`, managed, d.ID)
	if status != 200 || known.ID.String() != id || known.ActionID != nil || *known.ConnectionID != d.ID {
		t.Errorf("connect of a managed server: %d %+v", status, known)
	}
}

// TestConnectedDeploy stores what only run-connections can decrypt.
func TestConnectedDeploy(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	id, _ := d.instance(t, domain.InstanceStopped, domain.OriginLaunched)
	image := uuid.New()
	a, action := d.act(t, id, `{"action":"deploy","connection_id":%q,"image":"registry.example.com/agent:7",
"env":{"A":"canary-env"},"join_token":"canary-join","registry":{"username":"robot","password":"canary-password"},
"command":["canary-command"],"server_image":"`+image.String()+`","confirm_rebuild":true}`)
	if a.Status != 202 || action == "" {
		t.Fatalf("deploy: %d %s", a.Status, a.Body)
	}
	if dump := testkit.Dump(t, d.database); strings.Contains(dump, "canary") || strings.Contains(dump, "cloud-config") {
		t.Error("the database contains a secret in clear")
	}
	keys, err := seal.ConnectionOpenConfig{ConnectionPrivateKey: testkit.ConnectionPrivateKey}.Keys()
	if err != nil {
		t.Fatal(err)
	}
	payload := testkit.Scalar[[]byte](t, d.conn, "select payload from actions where id = $1", action)
	opened, err := keys.Open("action/"+owner+"/"+action, payload)
	if err != nil {
		t.Fatal(err)
	}
	var made domain.DelegatedDeploy
	err = json.Unmarshal([]byte(opened.Reveal()), &made)
	if err != nil || !strings.HasPrefix(made.UserData, "#cloud-config\n") || made.ImageID != image.String() {
		t.Errorf("%v %+v", err, made)
	}
	if left := time.Until(made.NotAfter); left < 25*time.Minute || left > 28*time.Minute {
		t.Errorf("a rebuild is possible for %s", left)
	}
	var shown domain.Server
	d.app.Get(t, d.path("/v1/servers/"+id)).JSON(t, &shown)
	g := shown.Instance.Agent
	if g == nil || g.DeploymentID != made.ID || g.Image != "registry.example.com/agent:7" || g.ReadyAt != nil {
		t.Errorf("its agent is %+v", g)
	}
}
