package servers

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestDeploy rebuilds a server, again for another version, and then while it is stopped. Its own metadata stay.
func TestDeploy(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "agent", 1)[0].ID
	metadata(t, p, server, `{"pool":"batch ✓"}`)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"REQUEST_TIMEOUT": "4m"}), Function).As(p.Token(t))
	path := "/v1/servers/" + server
	a := app.Post(t, path+"/actions", fmt.Sprintf(deployment, "1"))
	if a.Status != 409 || !strings.Contains(string(a.Body), "connect it first") {
		t.Errorf("a server that is not tracked: %d %s", a.Status, a.Body)
	}
	if status, _ := link(t, app, `{"server_id":%q}`, server); status != 201 {
		t.Fatalf("connect: %d", status)
	}
	before := ""
	for _, tag := range []string{"1", "2", "3"} {
		if tag == "3" {
			p.Stop(t, server)
		}
		a := app.Post(t, path+"/actions", fmt.Sprintf(deployment, tag))
		var done actionAnswer
		a.JSON(t, &done)
		if done.status = a.Status; !done.isAccepted(domain.InstanceUpdating) {
			t.Fatalf("deploy %s: %d %s", tag, a.Status, a.Body)
		}
		var shown domain.Server
		testkit.Eventually(t, 4*time.Minute, "the server is rebuilt, and ACTIVE", func() bool {
			app.Get(t, path).JSON(t, &shown)
			return shown.Status == "ACTIVE" && shown.Instance.State == domain.InstanceActive
		})
		g := shown.Instance.Agent
		if g == nil || g.Image != "registry.example.com/agent:"+tag || g.ReadyAt != nil {
			t.Fatalf("deploy %s: the agent is %+v", tag, g)
		}
		m := metadata(t, p, server, "")
		if m[domain.DeployMark] != g.DeploymentID.String() || m["pool"] != "batch ✓" || len(m) != 2 {
			t.Errorf("deploy %s: the metadata are %v", tag, m)
		}
		data := testkit.UserData(t, server)
		if !strings.HasPrefix(data, "#cloud-config\n{") || data == before || strings.Contains(data, "canary") {
			t.Errorf("deploy %s: the user_data are %s", tag, data)
		}
		before = data
	}
	if dump := testkit.Dump(t, database); strings.Contains(dump, "canary") {
		t.Error("the database contains a secret in clear")
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from deployments"); n != 3 {
		t.Errorf("there are %d deployments", n)
	}
}

// TestLongDeployTimesOut when the server takes long to start. Nothing is deployed.
func TestLongDeployTimesOut(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "slow", 1)[0].ID
	p.Stop(t, server)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	// A Nova that does not start the server: the real one may be quicker than any test.
	env := proxyNova(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		if strings.Contains(string(body), "os-start") {
			w.WriteHeader(http.StatusAccepted)
			return true
		}
		return false
	}, nil)
	env["REQUEST_TIMEOUT"] = "20s"
	app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
	track(t, conn, p, server, domain.InstanceStopped)
	a := app.Post(t, "/v1/servers/"+server+"/actions", fmt.Sprintf(deployment, "1"))
	if a.Status != 409 || !strings.Contains(string(a.Body), "send the same again") { // 504 at the request's deadline
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from deployments"); n != 0 {
		t.Errorf("there are %d deployments", n)
	}
}

// TestDeployOnAnOldCloud reports the missing version, and stores nothing.
func TestDeployOnAnOldCloud(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "old", 1)[0].ID
	image := testkit.Sandbox(t).ImageID
	for _, tc := range []struct {
		name, most, more string
		volume           bool
		status           int
		words            string
	}{
		{"an old cloud", "2.56", "", false, 501, "2.57"},
		{"a volume, and an old cloud", "2.92", `,"server_image":"` + image + `"`, true, 501, "2.93"},
		{"a volume, without an image", "2.93", "", true, 400, "server_image"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			database := testkit.Database(t)
			conn := testkit.Connect(t, database)
			env := proxyNova(t, func(w http.ResponseWriter, r *http.Request, body []byte) bool {
				version := strings.TrimPrefix(r.Header.Get("OpenStack-API-Version"), "compute ")
				if !strings.Contains(string(body), "rebuild") || len(version) < len(tc.most) || version <= tc.most {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusNotAcceptable)
				fmt.Fprintf(w, `{"computeFault":{"code":406,"message":"Version %s is not supported by the API. `+
					`Minimum is 2.1 and maximum is %s."}}`, version, tc.most)
				return true
			}, func(s map[string]any) {
				if tc.volume {
					s["image"] = ""
				}
			})
			app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
			track(t, conn, p, server, domain.InstanceActive)
			body := strings.TrimSuffix(fmt.Sprintf(deployment, "1"), "}") + tc.more + "}"
			a := app.Post(t, "/v1/servers/"+server+"/actions", body)
			if a.Status != tc.status || !strings.Contains(string(a.Body), tc.words) {
				t.Errorf("got %d %s, want %d with %s", a.Status, a.Body, tc.status, tc.words)
			}
			if n := testkit.Scalar[int](t, conn, "select count(*)::int from deployments"); n != 0 {
				t.Errorf("there are %d deployments", n)
			}
		})
	}
	p.Await(t, server, "ACTIVE") // it was not rebuilt
}

// TestDeployRejectsBadRequests, and fields of deployments in other actions.
func TestDeployRejectsBadRequests(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	path := "/v1/servers/" + uuid.NewString() + "/actions"
	for body, field := range map[string]string{
		`{"action":"deploy"}`: "image",
		`{"action":"deploy","image":"agent","confirm_rebuild":true}`:                                    "image",
		`{"action":"deploy","image":"agent:1"}`:                                                         "confirm_rebuild",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":false}`:                                 "confirm_rebuild",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"hard":true}`:                      "hard",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"force":true}`:                     "force",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"env":{"A":"x\ny"}}`:               "env.A",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"env":{"A":7}}`:                    "env.A",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"env":{"JOIN_TOKEN":"x"}}`:         "env.JOIN_TOKEN",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"command":["a\u0000"]}`:            "command[0]",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"command":"run"}`:                  "command",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"registry":{"username":"canary"}}`: "registry.password",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"registry":{"password":"canary"}}`: "registry.username",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"join_token":""}`:                  "join_token",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"join_token":"canary\n"}`:          "join_token",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"server_image":"cirros"}`:          "server_image",
		`{"action":"deploy","image":"agent:1","confirm_rebuild":true,"connection_id":"x"}`:              "connection_id",
		`{"action":"start","image":"agent:1"}`:                                                          "image",
		`{"action":"stop","command":[]}`:                                                                "command",
		`{"action":"stop","env":{}}`:                                                                    "env",
		`{"action":"stop","join_token":"canary"}`:                                                       "join_token",
		`{"action":"stop","confirm_rebuild":true}`:                                                      "confirm_rebuild",
		`{"action":"stop","force":true}`:                                                                "force",
		`{"action":"delete","server_image":"x"}`:                                                        "server_image",
		`{"action":"connect"}`:                                                                          "action",
	} {
		a := app.As(p.Token(t)).Post(t, path, body)
		if a.Status != 400 || !testkit.Names(t, a, field) || strings.Contains(string(a.Body), "canary") {
			t.Errorf("%s: got %d %s, want 400 that names %s", body, a.Status, a.Body, field)
		}
	}
	many := app.As(p.Token(t)).Post(t, "/v1/servers/actions", `{"action":"deploy","ids":["`+uuid.NewString()+`"]}`)
	if many.Status != 400 || !testkit.Names(t, many, "action") {
		t.Errorf("on many: %d %s", many.Status, many.Body)
	}
	if a := app.As(p.ReaderToken(t)).Post(t, path, fmt.Sprintf(deployment, "1")); a.Status != 403 {
		t.Errorf("a reader: %d %s", a.Status, a.Body)
	}
	off := testkit.Start(t, testkit.Env(t, database, map[string]string{"AGENT_URL": ""}), Function).As(p.Token(t))
	a := off.Post(t, path, fmt.Sprintf(deployment, "1"))
	if a.Status != 501 || !strings.Contains(string(a.Body), "AGENT_URL") {
		t.Errorf("without AGENT_URL: %d %s", a.Status, a.Body)
	}
}

// TestDeploymentOfAFailedAction is dropped only if the action is certainly not stored: otherwise run-connections would
// rebuild a server for an agent that no longer exists.
func TestDeploymentOfAFailedAction(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	id, _ := d.instance(t, domain.InstanceActive, domain.OriginLaunched)
	deploy := `{"action":"deploy","image":"registry.example.com/agent:1","confirm_rebuild":true,"connection_id":%q}`
	for _, tc := range []struct {
		sqlState     string
		status, kept int
	}{{"23505", 409, 0}, {"57P01", 503, 1}} {
		d.exec(t, fmt.Sprintf(`
create or replace function fail() returns trigger language plpgsql as $$
begin raise 'failed' using errcode = '%s'; end $$;
create or replace trigger fail before insert on actions for each row execute function fail()`, tc.sqlState))
		a, _ := d.act(t, id, deploy)
		n := testkit.Scalar[int](t, d.conn, "select count(*)::int from deployments")
		if a.Status != tc.status || n != tc.kept {
			t.Errorf("%s: got %d %s, and %d deployments are stored", tc.sqlState, a.Status, a.Body, n)
		}
	}
}

// TestDeployRejectsImagesBeyondTheLimits of the connection, before anything is stored.
func TestDeployRejectsImagesBeyondTheLimits(t *testing.T) {
	t.Parallel()
	allowed, other := uuid.NewString(), uuid.NewString()
	d := delegate(t, func(c *domain.Connection) { c.Limits.Images = []string{allowed} })
	id, _ := d.instance(t, domain.InstanceStopped, domain.OriginLaunched)
	deploy := func(image string) (testkit.Answer, string) {
		return d.act(t, id, `{"action":"deploy","connection_id":%q,"image":"registry.example.com/agent:7",
"server_image":"`+image+`","confirm_rebuild":true}`)
	}
	a, _ := deploy(other)
	text := string(a.Body)
	if a.Status != 403 || !testkit.Names(t, a, "server_image") || !strings.Contains(text, other) ||
		!strings.Contains(text, "only "+allowed) {
		t.Errorf("got %d %s", a.Status, text)
	}
	const stored = "select (select count(*) from actions)::int + (select count(*) from deployments)::int"
	if n := testkit.Scalar[int](t, d.conn, stored); n != 0 {
		t.Errorf("%d rows are stored", n)
	}
	if a, action := deploy(allowed); a.Status != 202 || action == "" {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}
