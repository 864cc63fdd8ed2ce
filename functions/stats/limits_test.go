package stats

import (
	"slices"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestFloodOfStrangers: what an address sends beyond its limit takes one row, and disturbs neither those with a token
// nor other addresses.
func TestFloodOfStrangers(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	p := testkit.Spawn(t, testkit.Env(t, database, map[string]string{
		"FUNCTION_TARGET": "stats", "ADDRESS_RATE_LIMIT": "1", "TRUSTED_PROXIES": "127.0.0.1",
	}))
	from := func(address, token string) testkit.Answer {
		return p.As(token).Get(t, "/v1/stats", "X-Forwarded-For", "10.0.0.1, "+address)
	}
	demo := testkit.Token(t, "demo")
	if a := from("192.0.2.9", demo); a.Status != 200 { // the token is known from now on
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	refused, sent := 0, 0
	for ; refused < 20 && sent < 1000; sent++ {
		switch a := from("192.0.2.1", "garbage"); a.Status {
		case 401:
		case 429:
			if refused++; a.Header.Get("Retry-After") != "1" || a.Header.Get("RateLimit") != `"address";r=0;t=1` ||
				a.Header.Get("RateLimit-Policy") != `"address";q=100;w=100` {
				t.Errorf("got %v", a.Header)
			}
		default:
			t.Fatalf("got %d %s", a.Status, a.Body)
		}
	}
	if refused < 20 {
		t.Errorf("only %d of %d requests were refused", refused, sent)
	}
	if a := from("192.0.2.1", demo); a.Status != 200 {
		t.Errorf("a token, from the same address: got %d %s", a.Status, a.Body)
	}
	if a := from("192.0.2.2", "garbage"); a.Status != 401 {
		t.Errorf("another address: got %d %s", a.Status, a.Body)
	}
	p.Terminate(t, time.Minute)
	var log struct {
		Requests []Request `json:"requests"`
	}
	operator := testkit.Start(t, testkit.Env(t, database, nil), Function).As(testkit.Token(t, "admin"))
	operator.Get(t, "/v1/requests?scope=cloud").JSON(t, &log)
	if i := slices.IndexFunc(log.Requests, func(r Request) bool { return r.Status == 429 }); i < 0 ||
		log.Requests[i].Count != refused || log.Requests[i].Remote != "192.0.2.1" {
		t.Errorf("an operator sees %+v", log.Requests)
	}
	conn := testkit.Connect(t, database)
	counted := testkit.Scalar[int](t, conn,
		"select count::int from requests where status = 429 and remote = '192.0.2.1'")
	own := testkit.Scalar[int](t, conn,
		"select count(*)::int from requests where status = 401 and remote = '192.0.2.1'")
	if counted != refused || own != sent-refused {
		t.Errorf("the log has %d refused requests and %d others, want %d and %d", counted, own, refused, sent-refused)
	}
}

// TestProjectLimit is apart from other projects'.
func TestProjectLimit(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), map[string]string{"PROJECT_RATE_LIMIT": "1"}), Function)
	busy, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	as := app.As(busy.Token(t))
	refused := testkit.Answer{}
	for range 1000 {
		if refused = as.Get(t, "/v1/stats"); refused.Status != 200 {
			break
		}
	}
	if refused.Status != 429 || refused.Header.Get("RateLimit-Policy") != `"project";q=10;w=10` {
		t.Errorf("got %d %v", refused.Status, refused.Header)
	}
	if a := app.As(other.Token(t)).Get(t, "/v1/stats"); a.Status != 200 {
		t.Errorf("another project: got %d %s", a.Status, a.Body)
	}
}
