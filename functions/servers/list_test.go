package servers

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// largeNova is a fake with more servers than the sandbox can have in a test, which records its calls. It lists
// servers like Nova: the newest first, up to a thousand, filtered by tags, name and status.
type largeNova struct {
	session // the other methods are not called

	servers []domain.Server

	mu    sync.Mutex
	calls []string
}

func (n *largeNova) called(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, name)
}

func (n *largeNova) Servers(_ context.Context, q domain.ServerQuery) (page []domain.Server, more bool, err error) {
	n.called(fmt.Sprintf("list %d", q.Limit))
	after := slices.IndexFunc(n.servers, func(s domain.Server) bool { return s.ID == q.Marker })
	for _, s := range n.servers[after+1:] {
		hasTag := func(tag string) bool { return slices.Contains(s.Tags, tag) }
		tagged := len(q.Tags) == 0 || slices.ContainsFunc(q.Tags, hasTag)
		if !tagged || s.ProjectID != "p1" || q.Status != "" && s.Status != q.Status ||
			!strings.Contains(s.Name, q.Name) {
			continue
		}
		if len(page) == min(q.Limit, 1000) {
			return page, true, nil
		}
		page = append(page, s)
	}
	return page, false, nil
}

func (n *largeNova) Server(_ context.Context, id string) (domain.Server, error) {
	n.called("get")
	for _, s := range n.servers {
		if s.ID == id {
			return s, nil
		}
	}
	return domain.Server{}, apperr.New(apperr.NotFound, "no such server")
}

// large is a service with a largeNova, whose servers are tracked if origin returns an origin.
func large(t *testing.T, servers int, origin func(n int) string) (service, *largeNova, access) {
	t.Helper()
	database := testkit.Database(t)
	db, err := postgres.Open(postgres.Config{URL: domain.Secret(database), MaxConns: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	nova := &largeNova{}
	var rows [][]any
	for n := range servers {
		s := domain.Server{ID: uuid.NewString(), ProjectID: "p1", Name: fmt.Sprintf("s-%d", n), Status: "ACTIVE"}
		if from := origin(n); from != "" {
			id := uuid.New()
			if from == domain.OriginLaunched {
				s.Tags = []string{id.String()}
			}
			rows = append(rows, []any{"p1", id, 0, s.Name, s.ID, "active", from})
		}
		nova.servers = append(nova.servers, s)
	}
	columns := []string{"project_id", "id", "position", "name", "server_id", "state", "origin"}
	table, conn := pgx.Identifier{"instances"}, testkit.Connect(t, database)
	if _, err := conn.CopyFrom(t.Context(), table, columns, pgx.CopyFromRows(rows)); err != nil {
		t.Fatal(err)
	}
	a := access{domain.OwnAccess(domain.Identity{ProjectID: "p1"}), nova}
	s := service{
		instances: postgres.Instances{DB: db}, connections: postgres.Connections{DB: db}, wake: func(...string) {},
	}
	return s, nova, a
}

// walk reads all pages, and returns how often each server was listed, the number of pages, and the most calls for one.
func walk(t *testing.T, s service, nova *largeNova, a access, q query) (found map[string]int, pages, calls int) {
	t.Helper()
	found = map[string]int{}
	for {
		nova.calls = nil
		page, next, err := s.List(t.Context(), a, q)
		if err != nil {
			t.Fatal(err)
		}
		pages, calls = pages+1, max(calls, len(nova.calls))
		for _, server := range page {
			found[server.ID]++
			if (server.Instance != nil) != *q.tracked {
				t.Errorf("%s is listed with the instance %+v", server.ID, server.Instance)
			}
		}
		if len(page) > q.Limit {
			t.Errorf("a page of %d has %d servers", q.Limit, len(page))
		}
		if next == "" {
			return found, pages, calls
		}
		q.Marker = next
	}
}

// TestListTrackedTakesFewCalls, whatever the share of the tracked servers, and wherever they are in Nova's list.
func TestListTrackedTakesFewCalls(t *testing.T) {
	t.Parallel()
	const launched, connected = domain.OriginLaunched, domain.OriginConnected
	all := func(origin string) func(int) string { return func(int) string { return origin } }
	oldest := func(origin string) func(int) string {
		return func(n int) string { return map[bool]string{true: origin}[n == 999] }
	}
	butOldest := func(n int) string { return map[bool]string{true: launched}[n != 999] }
	type q = domain.ServerQuery
	for name, tc := range map[string]struct {
		servers             int
		origin              func(int) string
		tracked             bool
		q                   q
		found, pages, calls int
	}{
		"one of a thousand":       {1000, oldest(launched), true, q{Limit: 1}, 1, 1, 1},
		"one that was connected":  {1000, oldest(connected), true, q{Limit: 100}, 1, 1, 1},
		"none":                    {1000, all(""), true, q{Limit: 1}, 0, 1, 0},
		"all, launched":           {1000, all(launched), true, q{Limit: 1000}, 1000, 1, 10},
		"all, connected":          {1000, all(connected), true, q{Limit: 1000}, 1000, 1, 1},
		"pages of 300":            {1000, all(launched), true, q{Limit: 300}, 1000, 4, 3},
		"a name":                  {1000, all(launched), true, q{Limit: 1, Name: "S-77"}, 11, 12, 10},
		"a status without server": {1000, all(launched), true, q{Limit: 1, Status: "ERROR"}, 0, 1, 10},
		"one untracked":           {1000, butOldest, false, q{Limit: 1}, 1, 1, 5},
		"none of 3000 untracked":  {3000, all(launched), false, q{Limit: 1}, 0, 3, 5},
		"the same by 1000":        {3000, all(launched), false, q{Limit: 1000}, 0, 3, 1},
		"all untracked, by 1000":  {1000, all(""), false, q{Limit: 1000}, 1000, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, nova, a := large(t, tc.servers, tc.origin)
			found, pages, calls := walk(t, s, nova, a, query{ServerQuery: tc.q, tracked: &tc.tracked})
			if len(found) != tc.found || pages > tc.pages || calls > tc.calls {
				t.Errorf("%d servers in %d pages, with up to %d calls for one: want %d in %d with %d",
					len(found), pages, calls, tc.found, tc.pages, tc.calls)
			}
			for id, times := range found {
				if times != 1 {
					t.Errorf("%s is listed %d times", id, times)
				}
			}
		})
	}
}

// TestListTrackedOmitsNone but servers that Nova no longer finds. Those without tags are read by id. An unknown
// marker is rejected, as by Nova.
func TestListTrackedOmitsNone(t *testing.T) {
	t.Parallel()
	s, nova, a := large(t, 40, func(int) string { return domain.OriginLaunched })
	nova.servers[3].Tags = nil                  // its owner removed them
	nova.servers[5].Tags = nova.servers[6].Tags // or copied
	nova.servers[8].ProjectID = "p2"            // an admin sees those of all
	gone := nova.servers[7].ID                  // deleted since the last poll
	nova.servers = slices.Delete(nova.servers, 7, 8)
	yes := true
	for _, limit := range []int{1, 7, 100} {
		found, _, _ := walk(t, s, nova, a, query{ServerQuery: domain.ServerQuery{Limit: limit}, tracked: &yes})
		if len(found) != 38 || found[gone] != 0 {
			t.Errorf("by %d: %d servers", limit, len(found))
		}
	}
	after := domain.ServerQuery{Limit: 1, Marker: uuid.NewString()}
	_, _, err := s.List(t.Context(), a, query{ServerQuery: after, tracked: &yes})
	if apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("an unknown marker: %v", err)
	}
}

// TestConnectedMetadata is stored with the own token, too: orders with reuse select by it.
func TestConnectedMetadata(t *testing.T) {
	t.Parallel()
	s, nova, a := large(t, 1, func(int) string { return "" })
	a.Identity.Roles = []string{"member"}
	nova.servers[0].Metadata = map[string]string{"pool": "blue"}
	done, err := s.Connect(t.Context(), a, nova.servers[0].ID, uuid.Nil)
	if err != nil || !done.made || done.instance.Spec.Metadata["pool"] != "blue" {
		t.Errorf("got %+v %v", done.instance, err)
	}
}

// TestAccessRules: the token of an application credential with access rules is good for the requests that they list, at
// this API and at Nova. Each enforces its own.
func TestAccessRules(t *testing.T) {
	t.Parallel()
	p := testkit.NewProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	here := testkit.AccessRule{Service: "cloudfn", Method: http.MethodGet, Path: "/v1/servers"}
	nova := testkit.AccessRule{Service: "compute", Method: http.MethodGet, Path: "/v2.1/servers/detail"}
	type rules = []testkit.AccessRule
	for name, tc := range map[string]struct {
		rules  []testkit.AccessRule
		method string
		path   string
		status int
		says   string
	}{
		"both":           {rules{here, nova}, http.MethodGet, "/v1/servers", 200, ""},
		"not Nova's":     {rules{here}, http.MethodGet, "/v1/servers", 403, "path /v2.1/servers/detail"},
		"not this API's": {rules{nova}, http.MethodGet, "/v1/servers", 403, "lack service cloudfn, method GET"},
		"another method": {rules{here, nova}, http.MethodPost, "/v1/servers/actions", 403, "method POST"},
	} {
		id, secret := p.AppCredential(t, tc.rules...)
		a := app.As(p.AppCredentialToken(t, id, secret)).Do(t, tc.method, tc.path, "")
		if a.Status != tc.status || !strings.Contains(string(a.Body), tc.says) {
			t.Errorf("%s: got %d %s", name, a.Status, a.Body)
		}
	}
}
