package servers

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestReusableMark is set and revoked by users of the server's project only, not by users of the connection.
func TestReusableMark(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	d := delegate(t, nil)
	id, server := d.instance(t, domain.InstanceStopped, domain.OriginConnected)
	mark := func(app *testkit.Client, id, body string) testkit.Answer {
		return app.Do(t, "PATCH", "/v1/servers/"+id, body, "Content-Type", "application/json")
	}
	for _, id := range []string{server, uuid.NewString()} {
		if a := mark(d.app, id, `{"reusable": true}`); a.Status != 404 {
			t.Errorf("by a user of the connection: %d %s", a.Status, a.Body)
		}
	}
	d.exec(t, "update instances set project_id = $1", p.ID)
	mine := d.app.As(p.Token(t))
	for _, tc := range []struct {
		id, body string
		status   int
		says     string
	}{
		{server, `{"reusable": true}`, 200, `"reusable":true`},
		{id, `{"reusable": false}`, 200, `"reusable":false`},
		{id, `{"reusable": true}`, 200, id},
		{id, `{}`, 400, `"reusable"`},
		{id, `{"reusable": "yes"}`, 400, `"reusable"`},
		{id, `{"reusable": true, "name": "x"}`, 400, `"name"`},
		{"x", `{"reusable": true}`, 404, "UUID"},
		{uuid.NewString(), `{"reusable": true}`, 404, "managed through a connection"},
	} {
		a := mark(mine, tc.id, tc.body)
		if a.Status != tc.status || !strings.Contains(string(a.Body), tc.says) {
			t.Errorf("%s %s: got %d %s", tc.id, tc.body, a.Status, a.Body)
		}
	}
	if got := testkit.Scalar[bool](t, d.conn, "select reusable from instances where id = $1::uuid", id); !got {
		t.Error("it is not marked")
	}
	d.exec(t, "update instances set connection_id = null")
	if a := mark(mine, id, `{"reusable": true}`); a.Status != 409 {
		t.Errorf("without a connection: %d %s", a.Status, a.Body)
	}
}
