package contract_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// withoutToken are the operations that write and have no token of a project, and why the limit of events is not theirs.
var withoutToken = map[string]string{
	"agentReady":    "a deployment is ready once",
	"consoleDelete": "the function that gets the request counts it",
	"consolePatch":  "the function that gets the request counts it",
	"consolePost":   "the function that gets the request counts it",
	"consolePut":    "the function that gets the request counts it",
	"reportNode":    "a report writes an event when the host's state changes",
	"signIn":        "SIGN_IN_RATE_LIMIT",
	"signOut":       "a session ends once",
	"switchProject": "SIGN_IN_RATE_LIMIT",
}

// TestEveryWriteIsLimited: of a project that has written as many events as it may, no operation that writes is served,
// and all that read are.
func TestEveryWriteIsLimited(t *testing.T) {
	t.Parallel()
	m := newMatrix(t, everyFunction...)
	if _, err := m.pool.Exec(context.Background(), "insert into rate_limits (name, source, used_up) values "+
		"('event', $1, now() + interval '1 hour')", ownProject); err != nil {
		t.Fatal(err)
	}
	member := callers[slices.IndexFunc(callers, func(c caller) bool { return c.scope == ofProject && c.has("member") })]
	before := m.rows(t, "")
	m.calls.Store(0)
	limited := 0
	for name, o := range m.operations {
		isRead := o.method == http.MethodGet || o.method == http.MethodHead
		if !withToken(o) {
			if withoutToken[name] == "" && !isRead && !isEvent(o) {
				t.Errorf("%s writes, has no token, and no limit is named", name)
			}
			continue
		}
		if isRead {
			continue
		}
		a := m.send(t, o, member, m.mine)
		if limited++; a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" ||
			a.Header.Get("RateLimit-Policy") != fmt.Sprintf(`"event";q=%d;w=60`, eventsPerMinute) {
			t.Errorf("%s: got %d %s %s, want 429 of the limit of events", name, a.Status, a.Header, a.Body)
		}
	}
	if limited < 40 {
		t.Errorf("%d operations write, want the API's", limited)
	}
	if diff := cmp.Diff(before, m.rows(t, "")); diff != "" {
		t.Errorf("what is refused has written: %s", diff)
	}
	if n := m.calls.Load(); n != 0 {
		t.Errorf("what is refused has called OpenStack %d times", n)
	}
	for _, name := range []string{"listServers", "listLeases", "listFlavors", "listManaged", "listCallbacks"} {
		if a := m.send(t, m.operations[name], member, m.mine); a.Status == http.StatusTooManyRequests {
			t.Errorf("%s reads: got %d %s", name, a.Status, a.Body)
		}
	}
}
