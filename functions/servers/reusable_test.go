package servers

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestReusableMark is set and taken back by users of the server's project, and by nobody else: not through the connection either.
func TestReusableMark(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	l := lend(t, nil)
	id, server := l.instance(t, domain.InstanceStopped, domain.OriginConnected)
	a := l.app.Do(t, "PATCH", "/v1/servers/"+server, `{"reusable": true}`, "Content-Type", "application/json")
	if b := l.app.Do(t, "PATCH", "/v1/servers/"+uuid.NewString(), `{"reusable": true}`, "Content-Type", "application/json"); a.Status != 404 || b.Status != 404 {
		t.Errorf("through the connection: %d %s, and %d for an unknown one", a.Status, a.Body, b.Status)
	}
	if _, err := l.conn.Exec(t.Context(), "update instances set project_id = $1", p.ID); err != nil {
		t.Fatal(err)
	}
	mine := l.app.As(p.Token(t))
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
		a := mine.Do(t, "PATCH", "/v1/servers/"+tc.id, tc.body, "Content-Type", "application/json")
		if a.Status != tc.status || !strings.Contains(string(a.Body), tc.says) {
			t.Errorf("%s %s: got %d %s", tc.id, tc.body, a.Status, a.Body)
		}
	}
	if got := testkit.Scalar[bool](t, l.conn, "select reusable from instances where id = $1::uuid", id); !got {
		t.Error("it is not marked")
	}
	if _, err := l.conn.Exec(t.Context(), "update instances set connection_id = null"); err != nil {
		t.Fatal(err)
	}
	if a := mine.Do(t, "PATCH", "/v1/servers/"+id, `{"reusable": true}`, "Content-Type", "application/json"); a.Status != 409 {
		t.Errorf("without a connection: %d %s", a.Status, a.Body)
	}
}
