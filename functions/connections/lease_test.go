package connections

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestConnectionOfLease is listed with its lease and can only be read: it ends with the lease.
func TestConnectionOfLease(t *testing.T) {
	t.Parallel()
	app, conn, _, _ := started(t, nil)
	p := testkit.BorrowProject(t)
	owner := app.As(p.Token(t))
	c, lease := create(t, owner, asking("trust", "")), uuid.New()
	if _, err := conn.Exec(t.Context(), "update connections set lease_id = $1", lease); err != nil {
		t.Fatal(err)
	}
	var page ConnectionPage
	owner.Get(t, "/v1/connections").JSON(t, &page)
	if len(page.Connections) != 1 || page.Connections[0].LeaseID != lease {
		t.Errorf("listed %+v", page)
	}
	page = ConnectionPage{}
	if owner.Get(t, "/v1/connections?usable=true").JSON(t, &page); len(page.Connections) != 0 {
		t.Errorf("usable are %+v", page)
	}
	path := "/v1/connections/" + c.ID.String()
	for _, request := range [][]string{
		{"DELETE", path, ""},
		{"PATCH", path, `{"name": "mine"}`},
		{"POST", path + "/suspend", ""},
		{"POST", path + "/resume", ""},
	} {
		a := owner.Do(t, request[0], request[1], request[2], "Content-Type", "application/json")
		if a.Status != http.StatusConflict || !strings.Contains(string(a.Body), "of lease "+lease.String()) {
			t.Errorf("%s %s: got %d %s", request[0], request[1], a.Status, a.Body)
		}
	}
	stranger := app.As(testkit.BorrowProject(t).Token(t))
	if a := stranger.Get(t, path); a.Status != http.StatusNotFound {
		t.Errorf("another project: %d %s", a.Status, a.Body)
	}
}
