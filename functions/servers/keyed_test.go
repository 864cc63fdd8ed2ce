package servers

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// logged counts the entries of a name in Nova's action log of a server.
func logged(t *testing.T, server, name string) (n int) {
	t.Helper()
	actions, err := testkit.Session(t, "admin").Actions(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range actions {
		if a.Name == name {
			n++
		}
	}
	return n
}

// TestLongRebootWithAnIDIsDoneOnce, however often it is sent, also concurrently and when its result was lost.
func TestLongRebootWithAnIDIsDoneOnce(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	servers := p.Boot(t, "again", 2)
	server, other := servers[0].ID, servers[1].ID
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	path, body := "/v1/servers/"+server+"/actions", fmt.Sprintf(`{"id":"%s","action":"reboot","hard":true}`, uuid.New())
	var all sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	for range 4 {
		all.Go(func() {
			a := app.Post(t, path, body)
			if a.Status == 409 && a.Header.Get("Retry-After") == "" {
				t.Errorf("concurrently: %d %s", a.Status, a.Body)
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[a.Status]++
		})
	}
	all.Wait()
	if statuses[202] != 1 || statuses[202]+statuses[200]+statuses[409] != 4 {
		t.Errorf("concurrently: %v", statuses)
	}
	p.Await(t, server, "ACTIVE")
	same := func(when string) {
		t.Helper()
		a := app.Post(t, path, strings.Replace(body, `"hard":true`, `"hard" : true`, 1))
		var done actionAnswer
		if a.JSON(t, &done); a.Status != 200 || !done.Changed || done.State != domain.InstanceRebooting {
			t.Errorf("repeated %s: %d %s", when, a.Status, a.Body)
		}
	}
	same("when it is done")
	loseResults(t, conn)
	same("when its replica was killed")
	same("after that")
	for what, a := range map[string]testkit.Answer{
		"another body":   app.Post(t, path, strings.Replace(body, "true", "false", 1)),
		"another action": app.Post(t, path, strings.Replace(body, `"reboot","hard":true`, `"stop"`, 1)),
		"another server": app.Post(t, "/v1/servers/"+other+"/actions", body),
	} {
		if a.Status != 409 || !strings.Contains(string(a.Body), "another action") {
			t.Errorf("%s: %d %s", what, a.Status, a.Body)
		}
	}
	if n := logged(t, server, "reboot"); n != 1 {
		t.Errorf("Nova has rebooted it %d times", n)
	}
	if n := logged(t, other, "reboot"); n != 0 {
		t.Errorf("Nova has rebooted another one %d times", n)
	}
}

// TestLongRejectedActionCanBeRepeated with the same id, when the state allows it.
func TestLongRejectedActionCanBeRepeated(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "refused", 1)[0].ID
	p.Stop(t, server)
	database := testkit.Database(t)
	var lose, lost bool
	env := proxyNova(t, func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		if lose && !lost && strings.Contains(string(body), "reboot") {
			lost = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	}, nil)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
	path, body := "/v1/servers/"+server+"/actions", fmt.Sprintf(`{"id":"%s","action":"reboot"}`, uuid.New())
	a := app.Post(t, path, body)
	if a.Status != 409 || !strings.Contains(string(a.Body), "does not allow the action reboot") {
		t.Errorf("while it is stopped: %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from keyed_actions"); n != 0 {
		t.Errorf("%d rejected actions are stored", n)
	}
	p.Start(t, server)
	lose = true
	if a := app.Post(t, path, body); a.Status < 500 {
		t.Errorf("while Nova is unavailable: %d %s", a.Status, a.Body)
	}
	_, err := conn.Exec(t.Context(), "update keyed_actions set claimed_until = clock_timestamp()") // instead of waiting
	if err != nil {
		t.Fatal(err)
	}
	if a := app.Post(t, path, body); a.Status != 202 {
		t.Errorf("after that: %d %s", a.Status, a.Body)
	}
	if n := logged(t, server, "reboot"); n != 1 {
		t.Errorf("Nova has rebooted it %d times", n)
	}
}

// TestLongDeployWithAnIDIsDoneOnce, also when the result was lost after Nova had accepted the rebuild.
func TestLongDeployWithAnIDIsDoneOnce(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "agent", 1)[0].ID
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, map[string]string{"REQUEST_TIMEOUT": "4m"}), Function).As(p.Token(t))
	track(t, conn, p, server, domain.InstanceActive)
	path := "/v1/servers/" + server + "/actions"
	body := strings.Replace(fmt.Sprintf(deployment, "1"), "{", fmt.Sprintf(`{"id":"%s",`, uuid.New()), 1)
	if a := app.Post(t, path, body); a.Status != 202 {
		t.Fatalf("deploy: %d %s", a.Status, a.Body)
	}
	same := func(when string) {
		t.Helper()
		a := app.Post(t, path, body)
		var done actionAnswer
		if a.JSON(t, &done); a.Status != 200 || !done.Changed || done.State != domain.InstanceUpdating {
			t.Errorf("repeated %s: %d %s", when, a.Status, a.Body)
		}
	}
	same("immediately")
	p.Await(t, server, "ACTIVE")
	same("when it is done")
	loseResults(t, conn)
	same("when its replica was killed")
	for _, secret := range []string{"canary-env", "canary-join"} {
		a := app.Post(t, path, strings.Replace(body, secret, secret+"2", 1))
		if a.Status != 409 || !strings.Contains(string(a.Body), "another action") {
			t.Errorf("with another %s: %d %s", secret, a.Status, a.Body)
		}
	}
	if n := logged(t, server, "rebuild"); n != 1 {
		t.Errorf("Nova has rebuilt it %d times", n)
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from deployments"); n != 1 {
		t.Errorf("there are %d deployments", n)
	}
	if dump := testkit.Dump(t, database); strings.Contains(dump, "canary") {
		t.Error("the database contains a secret in clear")
	}
}

// TestConnectedActionWithAnID is the same action while it runs and when it has ended.
func TestConnectedActionWithAnID(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	id, server := d.instance(t, domain.InstanceActive, domain.OriginLaunched)
	other, _ := d.instance(t, domain.InstanceActive, domain.OriginLaunched)
	for verb, more := range map[string]string{
		"deploy": `,"image":"registry.example.com/agent:7","join_token":"canary-join","confirm_rebuild":true`,
		"reboot": ``, "delete": ``,
	} {
		key := uuid.New()
		body := `{"id":"` + key.String() + `","action":"` + verb + `","connection_id":%q` + more + `}`
		var all sync.WaitGroup
		var mu sync.Mutex
		statuses := map[string]int{}
		for n := range 4 {
			all.Go(func() {
				a, action := d.act(t, []string{id, server}[n%2], body)
				mu.Lock()
				defer mu.Unlock()
				statuses[fmt.Sprint(a.Status, action)]++
			})
		}
		all.Wait()
		if statuses["202"+key.String()] != 1 || statuses["200"+key.String()] != 3 {
			t.Errorf("%s concurrently: %v", verb, statuses)
		}
		for _, sql := range []string{
			"update actions set status = 'done', payload = null",
			"update instances set state = 'deleted' where '" + verb + "' = 'delete'",
		} {
			d.exec(t, sql)
			if a, action := d.act(t, id, body); a.Status != 200 || action != key.String() {
				t.Errorf("%s when it has ended: %d %s", verb, a.Status, a.Body)
			}
		}
		if n := testkit.Scalar[int](t, d.conn, "select count(*)::int from actions where verb = $1", verb); n != 1 {
			t.Errorf("there are %d actions to %s", n, verb)
		}
		for what, a := range map[string]func() (testkit.Answer, string){
			"another server": func() (testkit.Answer, string) { return d.act(t, other, body) },
			"another action": func() (testkit.Answer, string) {
				return d.act(t, id, `{"id":"`+key.String()+`","action":"stop","connection_id":%q}`)
			},
		} {
			if a, _ := a(); a.Status != 409 || !strings.Contains(string(a.Body), "another action") {
				t.Errorf("%s, %s: %d %s", verb, what, a.Status, a.Body)
			}
		}
		d.exec(t, "update instances set state = 'active'")
	}
	if n := testkit.Scalar[int](t, d.conn, "select count(*)::int from deployments"); n != 1 {
		t.Errorf("there are %d deployments", n)
	}
	a, _ := d.act(t, id, `{"id":"`+other+`","action":"stop","connection_id":%q}`)
	if a.Status != 409 || !testkit.Names(t, a, "id") {
		t.Errorf("an instance's id: %d %s", a.Status, a.Body)
	}
	events := testkit.Scalar[int](t, d.conn, "select count(*)::int from events where type = $1", domain.ActionEvent)
	if events != 3 {
		t.Errorf("three actions have %d events", events)
	}
}

// TestActionRejectsBadIDs: an action on many servers has none, and one on an absent server stores none.
func TestActionRejectsBadIDs(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(testkit.Token(t, "demo"))
	path := "/v1/servers/" + uuid.NewString() + "/actions"
	id := uuid.NewString()
	many := app.Post(t, "/v1/servers/actions", `{"action":"stop","id":"`+id+`","ids":["`+id+`"]}`)
	if many.Status != 400 || !testkit.Names(t, many, "id") {
		t.Errorf("of many: %d %s", many.Status, many.Body)
	}
	for range 2 { // nothing of a server that is absent is stored
		if a := app.Post(t, path, `{"action":"stop","id":"`+uuid.NewString()+`"}`); a.Status != 404 {
			t.Errorf("of an unknown server: %d %s", a.Status, a.Body)
		}
	}
}

// TestLongKeyedReboots: with an Idempotency-Key an action on one server, and one on many, are done once, whatever is
// lost of the first attempt.
func TestLongKeyedReboots(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	servers := p.Boot(t, "keyed", 3)
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	for name, tc := range map[string]struct{ path, body string }{
		"one": {"/v1/servers/" + servers[0].ID + "/actions", `{"action": "reboot", "hard": true}`},
		"many": {"/v1/servers/actions", fmt.Sprintf(`{"action": "reboot", "hard": true, "ids": [%q, %q]}`,
			servers[1].ID, servers[2].ID)},
	} {
		key := uuid.NewString()
		send := func() testkit.Answer {
			t.Helper()
			return app.Do(t, "POST", tc.path, tc.body, "Content-Type", "application/json", "Idempotency-Key", key)
		}
		first := send()
		if first.Status != 202 {
			t.Fatalf("%s: got %d %s", name, first.Status, first.Body)
		}
		if a := send(); a.Status != 202 || string(a.Body) != string(first.Body) {
			t.Errorf("%s, again: got %d %s", name, a.Status, a.Body)
		}
		for _, server := range servers {
			p.Await(t, server.ID, "ACTIVE")
		}
		testkit.LeaveRequests(t, conn, testkit.Died)
		if a := send(); a.Status > 202 || a.Header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%s, died when it was done: got %d %s", name, a.Status, a.Body)
		}
		testkit.LeaveRequests(t, conn, testkit.Died)
		loseResults(t, conn)
		if a := send(); a.Status > 202 {
			t.Errorf("%s, died before its result: got %d %s", name, a.Status, a.Body)
		}
	}
	for _, server := range servers {
		if n := logged(t, server.ID, "reboot"); n != 1 {
			t.Errorf("Nova has rebooted %s %d times", server.ID, n)
		}
	}
}
