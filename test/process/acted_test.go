package process_test

import (
	"encoding/csv"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

type actedPage struct {
	Requests []struct {
		Method, Path, Remote, Code string
		Status                     int
		UserID                     string `json:"user_id"`
		UserName                   string `json:"user_name"`
		ProjectID                  string `json:"project_id"`
		ConnectionID               string `json:"connection_id"`
		ActedIn                    string `json:"acted_in"`
	}
}

// TestLongWhoDidIt: the owner of a connection finds in the request log, in the history of a server and in events what
// someone of another project did through it. That project still finds its own requests, and a stranger finds nothing.
func TestLongWhoDidIt(t *testing.T) {
	t.Parallel()
	d := newDelegates(t)
	d.start(t, "stats")
	stranger := testkit.NewProject(t)
	d.tokens[stranger] = stranger.Token(t)
	connection := d.delegate(t, `["allocate", "start", "stop"]`, `{"instances": 1}`)
	order := d.allocated(t, connection, d.allocate(t, connection, ""))
	if order.Status != "done" {
		t.Fatalf("the order is %+v", order)
	}
	instance := order.Instances[0].ID
	if status := d.action(t, connection, instance, `{"action": "stop"}`); status != "done" {
		t.Fatalf("the action is %s", status)
	}
	refused(t, "a reboot", d.at(d.actor, "servers").Post(t, "/v1/servers/"+instance+"/actions", `{"action": "reboot", "connection_id": "`+connection+`"}`),
		http.StatusForbidden, "does not permit")
	refused(t, "a stranger", d.at(stranger, "servers").Get(t, "/v1/servers?connection_id="+connection),
		http.StatusNotFound, "")

	d.seen(t, connection)
	d.exported(t, connection)
	d.remembered(t, connection, instance)
}

// seen checks what the request log shows to each of the three projects.
func (d *delegates) seen(t *testing.T, connection string) {
	t.Helper()
	list := func(who *testkit.Project, query string) (page actedPage) {
		t.Helper()
		d.at(who, "stats").Get(t, "/v1/requests?limit=1000"+query).JSON(t, &page)
		return page
	}
	ordered, denied := false, false
	one := list(d.owner, "&acted_through="+connection)
	for _, r := range one.Requests {
		if r.UserID != d.actor.UserID || r.ProjectID != d.actor.ID || r.UserName == "" ||
			r.ConnectionID != connection || r.ActedIn != d.owner.ID || r.Remote != "" {
			t.Errorf("the owner is shown %+v", r)
		}
		ordered = ordered || r.Method == http.MethodPost && r.Path == "/v1/launch" && r.Status == http.StatusAccepted
		denied = denied || r.Status == http.StatusForbidden && r.Code == "forbidden"
	}
	if !ordered || !denied || len(one.Requests) != len(list(d.owner, "&acted_through=any").Requests) {
		t.Errorf("the order is there: %t, the refusal: %t, in %+v", ordered, denied, one.Requests)
	}
	for _, r := range list(d.owner, "").Requests {
		if r.ProjectID != d.owner.ID {
			t.Errorf("the owner's own list shows %+v", r)
		}
	}
	own := 0
	for _, r := range list(d.actor, "").Requests {
		if r.ConnectionID == connection && r.Remote != "" {
			own++
		}
	}
	if own < len(one.Requests) {
		t.Errorf("who made the requests sees %d of %d", own, len(one.Requests))
	}
	for _, query := range []string{
		"&acted_through=any", "&acted_through=" + connection, "&acted_through=" + uuid.NewString(),
	} {
		if n := len(list(stranger(d), query).Requests) + len(list(d.actor, query).Requests); n != 0 {
			t.Errorf("%s: who does not own it is shown %d rows", query, n)
		}
	}
}

// stranger is the project that is neither the owner nor the actor.
func stranger(d *delegates) *testkit.Project {
	for p := range d.tokens {
		if p != d.owner && p != d.actor {
			return p
		}
	}
	return nil
}

// exported holds an export against the list.
func (d *delegates) exported(t *testing.T, connection string) {
	t.Helper()
	sheet := d.at(d.owner, "stats").Get(t, "/v1/requests?acted_through="+connection, "Accept", "text/csv")
	rows, err := csv.NewReader(strings.NewReader(string(sheet.Body))).ReadAll()
	if err != nil || len(rows) < 3 || rows[1][14] != connection || rows[1][15] != d.owner.ID {
		t.Errorf("the export is %d %s, %v", sheet.Status, sheet.Body, err)
	}
}

// remembered holds the server's history and the events against who did what.
func (d *delegates) remembered(t *testing.T, connection, instance string) {
	t.Helper()
	var past struct {
		Events []struct {
			Data struct {
				State string
				Actor *struct {
					UserID       string `json:"user_id"`
					ConnectionID string `json:"connection_id"`
					OrderID      string `json:"order_id"`
					Action       string
				}
			}
		}
	}
	d.at(d.owner, "servers").Get(t, "/v1/servers/history/"+instance).JSON(t, &past)
	var ordered, stopped, isActive bool
	for _, e := range past.Events {
		switch a := e.Data.Actor; {
		case a == nil:
			isActive = isActive || e.Data.State == "active"
		case a.UserID != d.actor.UserID || a.ConnectionID != connection:
			t.Errorf("an event has the actor %+v", a)
		default:
			ordered = ordered || a.OrderID != "" && e.Data.State == "requested"
			stopped = stopped || a.Action == "stop"
		}
	}
	if !ordered || !stopped || !isActive {
		t.Errorf("ordered %t, stopped %t, active automatically %t: %+v", ordered, stopped, isActive, past.Events)
	}
	if a := d.at(stranger(d), "servers").Get(t, "/v1/servers/history/"+instance); a.Status != http.StatusNotFound {
		t.Errorf("a stranger gets the history: %d %s", a.Status, a.Body)
	}
	conn := testkit.Connect(t, d.database)
	if n := testkit.Scalar[int](t, conn,
		`select count(*)::int from events where type = 'cloudfn.connection.state.v1' and data#>>'{actor,user_id}' = $1`, d.owner.UserID); n != 1 {
		t.Errorf("%d events say who has made the connection", n)
	}
}
