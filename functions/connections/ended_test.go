package connections

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongListEndedConnections lists them for their own project, by status; deleted ones only on request.
func TestLongListEndedConnections(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	owner, actor := app.As(p.Token(t)), app.As(other.Token(t))
	ids := map[string]string{}
	for _, status := range []string{"active", "expired", "lost", "deleted"} {
		id := create(t, owner, asking("trust", fmt.Sprintf(`, "usable_by": [%q]`, other.ID))).ID.String()
		ids[id] = status
		_, err := conn.Exec(t.Context(), "update connections set status = $2 where id = $1", id, status)
		if err != nil {
			t.Fatal(err)
		}
		want := map[bool]int{true: 404, false: 200}[status == "deleted"]
		if a, theirs := owner.Get(t, "/v1/connections/"+id), actor.Get(t, "/v1/connections/"+id); a.Status != 200 ||
			theirs.Status != want {
			t.Errorf("%s: its owner gets %d %s, another project %d %s", status, a.Status, a.Body, theirs.Status,
				theirs.Body)
		}
	}
	for query, want := range map[string]string{
		"": "active expired lost ", "?status=deleted": "deleted ", "?status=deleted,lost": "lost deleted ",
		"?status=active,active": "active ",
		"?usable=true":          "active ", "?status=active,expired,lost,deleted": "active expired lost deleted ",
	} {
		var page ConnectionPage
		a := owner.Get(t, "/v1/connections"+query)
		a.JSON(t, &page)
		var got strings.Builder
		for _, c := range page.Connections {
			got.WriteString(string(c.Status) + " ")
			if revocation := map[bool]domain.Revocation{
				true:  "",
				false: "pending",
			}[c.Status == "active"]; c.Revocation != revocation || ids[c.ID.String()] != string(c.Status) {
				t.Errorf("%q shows %+v", query, c)
			}
		}
		if got.String() != want {
			t.Errorf("%q: got %s%s, want %s", query, &got, a.Body, want)
		}
		var theirs ConnectionPage
		actor.Get(t, "/v1/connections"+query).JSON(t, &theirs)
		if query != "?usable=true" && len(theirs.Connections) != 0 {
			t.Errorf("%q: another project is shown %+v", query, theirs)
		}
	}
}

// TestLongConnectionsWithTheSameEnd works around Keystone, which accepts one trust of a user for each end and counts
// deleted ones.
func TestLongConnectionsWithTheSameEnd(t *testing.T) {
	t.Parallel()
	app, _, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	app = app.As(p.Token(t))
	body := asking("trust", "")
	first := create(t, app, body)
	second := create(t, app, body)
	for _, c := range []Connection{first, second} {
		if a := app.Do(t, "DELETE", "/v1/connections/"+c.ID.String(), ""); a.Status != 204 {
			t.Fatalf("delete: %d %s", a.Status, a.Body)
		}
	}
	statuses := make(chan testkit.Answer, 10)
	for range cap(statuses) {
		go func() {
			a, _ := app.Try(t, "POST", "/v1/connections", body, "Content-Type", "application/json")
			statuses <- a
		}()
	}
	for range cap(statuses) {
		if a := <-statuses; a.Status != 201 {
			t.Errorf("at once: %d %s", a.Status, a.Body)
		}
	}
	if there := p.Trusts(t); len(there) != cap(statuses) {
		t.Errorf("Keystone has %d trusts", len(there))
	}
}
