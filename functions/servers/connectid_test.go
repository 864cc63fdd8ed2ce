package servers

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestConnectReturnsTheInstanceID, whoever manages or managed the server, and rejects another id.
func TestConnectReturnsTheInstanceID(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	taken, _ := d.instance(t, domain.InstanceActive, domain.OriginLaunched)
	for name, tc := range map[string]struct {
		change string // of the server's instance; "" = it has none
		status int
	}{
		"managed through the connection":  {"connection_id = connection_id", 200},
		"managed by its project":          {"connection_id = null", 202},
		"disconnected of the connection":  {"disconnected_at = clock_timestamp()", 202},
		"disconnected of its project":     {"disconnected_at = clock_timestamp(), connection_id = null", 202},
		"of a connection that has ended":  {"connection_id = gen_random_uuid()", 202},
		"never tracked":                   {"", 202},
		"never tracked, with an id given": {"", 202},
	} {
		given := ""
		server := uuid.NewString()
		id := uuid.Nil.String()
		if tc.change != "" {
			id, server = d.instance(t, domain.InstanceActive, domain.OriginConnected)
			if _, err := d.conn.Exec(t.Context(), "update instances set "+tc.change+" where id = $1", id); err != nil {
				t.Fatal(err)
			}
		}
		if strings.Contains(name, "given") {
			id = uuid.NewString()
			given = fmt.Sprintf(`,"id":%q`, id)
		}
		status, first := link(t, d.app, `{"server_id":%q,"connection_id":%q%s}`, server, d.ID, given)
		if status != tc.status || id != uuid.Nil.String() && first.ID.String() != id {
			t.Errorf("%s: %d %+v, want %d and the id %s", name, status, first, tc.status, id)
		}
		// Repeated, also with the id that is known now.
		for _, id := range []string{given, fmt.Sprintf(`,"id":"%s"`, first.ID)} {
			status, again := link(t, d.app, `{"server_id":%q,"connection_id":%q%s}`, server, d.ID, id)
			if status != tc.status || again.ID != first.ID || orZero(again.ActionID) != orZero(first.ActionID) {
				t.Errorf("%s: repeated: %d %+v, first %+v", name, status, again, first)
			}
		}
		for _, other := range []string{uuid.NewString(), taken} {
			a := d.app.Post(t, "/v1/servers", fmt.Sprintf(`{"server_id":%q,"connection_id":%q,"id":%q}`, server, d.ID, other))
			if a.Status != 409 || !testkit.Names(t, a, "id") || !strings.Contains(string(a.Body), first.ID.String()) {
				t.Errorf("%s: with another id: %d %s", name, a.Status, a.Body)
			}
		}
	}
	body := fmt.Sprintf(`{"server_id":%q,"connection_id":%q,"id":%q}`, uuid.NewString(), d.ID, taken)
	a := d.app.Post(t, "/v1/servers", body)
	if a.Status != 409 || !testkit.Names(t, a, "id") {
		t.Errorf("under a taken id: %d %s", a.Status, a.Body)
	}
}

// TestConnectConcurrently returns the same action and id to all.
func TestConnectConcurrently(t *testing.T) {
	t.Parallel()
	d := delegate(t, nil)
	body := fmt.Sprintf(`{"server_id":%q,"connection_id":%q}`, uuid.NewString(), d.ID)
	var all sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]int{}
	for range 8 {
		all.Go(func() {
			status, a := link(t, d.app, "%s", body)
			mu.Lock()
			defer mu.Unlock()
			if status != 202 || a.ActionID == nil {
				t.Errorf("%d %+v", status, a)
				return
			}
			answers[fmt.Sprint(a.ID, *a.ActionID)]++
		})
	}
	all.Wait()
	if len(answers) != 1 {
		t.Errorf("the answers are %v", answers)
	}
	if n := testkit.Scalar[int](t, d.conn, "select count(*)::int from actions"); n != 1 {
		t.Errorf("%d actions are stored", n)
	}
}
