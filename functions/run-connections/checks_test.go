package runconnections

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/delegation"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fakeKeystone answers logins with trusts as the trusts' ids say, and counts them.
type fakeKeystone struct {
	session
	account

	mu            sync.Mutex
	logins        map[string]int
	running, most int
}

func (f *fakeKeystone) WithTrust(_ context.Context, trust string) (session, error) {
	f.mu.Lock()
	f.logins[trust]++
	f.running++
	f.most = max(f.most, f.running)
	f.mu.Unlock()
	time.Sleep(20 * time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.running--
	switch trust {
	case "gone":
		return nil, apperr.New(apperr.Unauthenticated, "gone")
	case "unavailable":
		return nil, apperr.New(apperr.Unavailable, "keystone cannot be reached")
	}
	return f, nil
}

func (f *fakeKeystone) CheckTrust(context.Context, string) error {
	return apperr.New(apperr.NotFound, "absent")
}

func (f *fakeKeystone) ActsAs() domain.ActsAs {
	return domain.ActsAs{Roles: []string{"member", "reader"}}
}

// TestChecksOfIdleConnections: each due connection is checked once with Keystone, a few at a time. A rejected one is
// lost, the roles of an accepted one are stored, and nothing changes while Keystone is unavailable.
func TestChecksOfIdleConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := map[string]domain.Connection{}
	for n := range 20 {
		id := fmt.Sprint("good", n)
		made[id] = w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, id })
	}
	for _, id := range []string{"gone", "unavailable"} {
		made[id] = w.connect(t, func(c *domain.Connection) { c.Kind, c.DelegationID = domain.TrustConnection, id })
	}
	keystone := &fakeKeystone{logins: map[string]int{}}
	s := newService(w.db, func(...string) {})
	s.cloud.Pause = time.Millisecond
	s.cloud.Now, s.cloud.Accepted = w.db.Now, s.accepted
	s.cloud.Login = func(context.Context) (account, error) { return keystone, nil }
	run := func() {
		t.Helper()
		if err := s.run(t.Context(), newWorkers().batch()); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if len(keystone.logins) != 0 {
		t.Errorf("new connections were checked: %v", keystone.logins)
	}
	w.exec(t, `update connections set next_check_at = next_check_at - interval '8 minutes',
  checked_at = checked_at - interval '8 minutes'`)
	run()
	run()
	for id, n := range keystone.logins {
		// a rejection may be the account's own fault, or last only a moment
		if want := map[bool]int{true: 4, false: 1}[id == "gone"]; n != want {
			t.Errorf("%s: %d logins, want %d", id, n, want)
		}
	}
	if len(keystone.logins) != len(made) || keystone.most > poolSize {
		t.Errorf("%d were checked, %d concurrently", len(keystone.logins), keystone.most)
	}
	for id, want := range map[string]string{
		"good7": `active true ["member", "reader"] `, "gone": `lost false ["member"] `,
		"unavailable": `active false ["member"] keystone cannot be reached`,
	} {
		got := w.text(t, `select status || ' ' || (checked_at > clock_timestamp() - interval '2 minutes') || ' ' || (acts_as->>'roles') || ' ' ||
			case status when 'lost' then '' else check_error end from connections where id = $1`, made[id].ID)
		if got != want {
			t.Errorf("%s is %s, want %s", id, got, want)
		}
	}
	w.ends(t, made["gone"].ID, "active lost")
}

// requestedDuring is a Keystone during whose login a check is requested.
type requestedDuring struct {
	*fakeKeystone
	request func()
}

func (k requestedDuring) WithTrust(ctx context.Context, trust string) (session, error) {
	k.request()
	return k.fakeKeystone.WithTrust(ctx, trust)
}

// TestRequestDuringLateCheck: a check is requested while Keystone is being called, and the statement that records the
// answer is late. The answer is older than the request, so the check stays due.
func TestRequestDuringLateCheck(t *testing.T) {
	t.Parallel()
	w := fakes(t)
	store := postgres.Connections{DB: w.db}
	for _, trust := range []string{"good", "unavailable"} {
		c := w.remote(t, newFakeCloud(t))
		w.exec(t, `update connections set kind = 'trust', delegation_id = $2, auth_url = '', secret = null,
  next_check_at = now() where id = $1`, c.ID, trust)
		c, isFound, err := postgres.Delegations{DB: w.db}.ClaimCheck(t.Context(), domain.RemoteCloud{}, checkClaim)
		if err != nil || !isFound {
			t.Fatal(isFound, err)
		}
		s := newService(w.db, func(...string) {})
		began, since, committed := time.Now(), time.Time{}, make(chan error, 1)
		keystone := requestedDuring{&fakeKeystone{logins: map[string]int{}}, func() {
			if since, err = store.RequestCheck(t.Context(), c.ProjectID, c.ID); err != nil {
				t.Error(err)
			}
			change, err := testkit.Pool(t, w.database).Begin(t.Context())
			if err == nil {
				_, err = change.Exec(t.Context(), "update connections set updated_at = updated_at where id = $1", c.ID)
			}
			if err != nil {
				t.Error(err)
				return
			}
			wait := 2*time.Since(began) + 50*time.Millisecond // for longer than the check takes
			time.AfterFunc(wait, func() { committed <- change.Commit(context.Background()) })
		}}
		s.cloud.Login = func(context.Context) (account, error) { return keystone, nil }
		s.cloud.Now, s.cloud.Accepted = w.db.Now, s.accepted
		s.check(t.Context(), c)
		if err := <-committed; err != nil {
			t.Fatal(err)
		}
		if got := w.text(t, `select concat(next_check_at <= now(), greatest(checked_at, check_failed_at) < $2)
  from connections where id = $1`, c.ID, since); got != "tt" {
			t.Errorf("%s: it is due, and answered before the request: %s", trust, got)
		}
	}
}

// TestLongUnavailableService: Keystone accepts the delegation, and Nova answers 503. The order and the action are
// retried after pauses, and the connection stays active.
func TestLongUnavailableService(t *testing.T) {
	t.Parallel()
	w, f := fakes(t), newFakeCloud(t)
	c := w.remote(t, f)
	f.unavailable = []string{c.ActsAs.ProjectID}
	instance := uuid.New()
	w.exec(t, `insert into instances (project_id, id, position, name, server_id, state, raw_status, origin, connection_id)
values ($1, $2, 0, 'tracked', $3, 'active', 'ACTIVE', 'connected', $4)`, w.ID, instance, uuid.NewString(), c.ID) // nothing else reads it
	stop := w.act(t, c, instance, domain.ActionRequest{Action: domain.Stop}, nil)
	order := w.place(t, c, 1, nil)
	w.exec(t, "update orders set claim_id = null, claimed_until = null, updated_at = updated_at - interval '1 minute'")
	p := w.function(t, nil)
	tick(t, p)
	lists, logins := f.count("/compute/servers/detail"), f.count("/auth/tokens")
	gets := f.count("/compute/servers/") - lists
	t.Logf("one event sent %d lists, %d gets and %d logins", lists, gets, logins)
	if lists > 20 || gets > 20 || logins > 20 { // in 45 s; the transport sends some of them twice or three times
		t.Errorf("one event sent %d lists, %d gets and %d logins", lists, gets, logins)
	}
	if got := w.status(t, c); got != "active" || w.action(t, stop).Status != domain.ActionRunning ||
		w.order(t, order.ID).Status != domain.OrderRunning {
		t.Errorf("the connection is %s", got)
	}
	f.mu.Lock()
	f.unavailable = nil
	f.mu.Unlock()
	wants(t, w.done(t, p, stop), "not_found")
	if log := strings.Count(w.eventsOf(t, c.ID), "lost"); log != 0 {
		t.Error("it was lost")
	}
}

// refusingKeystone is a proxy of the real Keystone that answers logins with a delegation itself while it has an answer.
// It forwards everything else, the account's own logins too.
type refusingKeystone struct {
	url string

	mu     sync.Mutex
	status int // 0 = it passes on what comes; -1 = it closes the connection
	body   string
	isOver func() bool
}

func newRefusingKeystone(t *testing.T) *refusingKeystone {
	t.Helper()
	keystone, err := url.Parse(testkit.KeystoneURL(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = keystone.Scheme, keystone.Host
	}}
	k := &refusingKeystone{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		status, answer := k.refusal(r, string(body))
		switch status {
		case 0:
			proxy.ServeHTTP(w, r)
		case -1:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(status)
			_, _ = io.WriteString(w, answer)
		}
	}))
	t.Cleanup(server.Close)
	k.url = server.URL + "/v3"
	return k
}

func (k *refusingKeystone) refusal(r *http.Request, body string) (status int, answer string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	isDelegation := strings.Contains(body, "OS-TRUST:trust") || strings.Contains(body, `"application_credential"`)
	isLogin := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/auth/tokens")
	if !isLogin || !isDelegation || k.status == 0 {
		return 0, ""
	}
	if k.isOver != nil && k.isOver() {
		return 0, ""
	}
	return k.status, k.body
}

// answer sets the answer to logins with a delegation. Once isOver reports true they are forwarded to Keystone.
func (k *refusingKeystone) answer(status int, body string, isOver func() bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status, k.body, k.isOver = status, body, isOver
}

// keystoneSays is a refusal as Keystone writes it.
func keystoneSays(status int) string {
	return fmt.Sprintf(`{"error":{"code":%d,"message":"no","title":%q}}`, status, http.StatusText(status))
}

// TestLongKeystoneThatIsHalfUp: neither a proxy's answer nor a failure of Keystone ends a delegation, nor does one
// rejection that Keystone withdraws a moment later. Only two rejections by Keystone itself do.
func TestLongKeystoneThatIsHalfUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keystone := newRefusingKeystone(t)
	all := []domain.Connection{w.trust(t), w.credential(t, "")}
	p := w.function(t, accountAt(t, keystone.url, nil))
	const page = "<html><head><title>Service Unavailable</title></head></html>"
	moment := func() func() bool { // after the first refusal
		var over time.Time
		return func() bool {
			if over.IsZero() {
				over = time.Now().Add(delegation.ConfirmPause / 2)
			}
			return time.Now().After(over)
		}
	}
	for _, tc := range []struct {
		name       string
		status     int
		body       string
		isOver     func() bool
		want       string
		isAnswered bool // in the same event
	}{
		{name: "it accepts them", want: "active", isAnswered: true},
		{name: "it closes the connection", status: -1, want: "active"},
		{name: "its database is unavailable", status: 500, body: keystoneSays(500), want: "active"},
		{name: "a proxy's 502", status: 502, body: page, want: "active"},
		{name: "a proxy's 503", status: 503, body: page, want: "active"},
		{name: "a proxy's 504", status: 504, body: page, want: "active"},
		{name: "a proxy's 401", status: 401, body: page, want: "active"},
		{name: "a proxy's 403", status: 403, body: page, want: "active"},
		{name: "a proxy's 404", status: 404, body: page, want: "active"},
		{name: "a gateway's 404", status: 404, body: `{"message":"no Route matched with those values"}`, want: "active"},
		{
			name: "Keystone's 401, once", status: 401, body: keystoneSays(401), isOver: moment(), want: "active",
			isAnswered: true,
		},
		{
			name: "Keystone's 404, once", status: 404, body: keystoneSays(404), isOver: moment(), want: "active",
			isAnswered: true,
		},
		{name: "Keystone's 401", status: 401, body: keystoneSays(401), want: "lost"},
	} {
		keystone.answer(tc.status, tc.body, tc.isOver)
		w.exec(t, `
update connections set not_before = null, check_error = '', checked_at = checked_at - interval '1 hour',
                       next_check_at = clock_timestamp() - interval '1 hour'`)
		tick(t, p)
		for _, c := range all {
			got := w.text(t, `
select status || ' ' || (check_error = '' and checked_at > clock_timestamp() - interval '1 minute')
from connections where id = $1`, c.ID)
			if want := fmt.Sprint(tc.want, " ", tc.isAnswered); got != want {
				t.Errorf("%s: the %s is %s, want %s", tc.name, c.Kind, got, want)
			}
		}
	}
}
