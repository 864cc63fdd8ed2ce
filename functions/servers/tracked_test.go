package servers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// largeNova is a Nova with more servers than the sandbox could be given in a test, whose calls are counted. It lists servers as Nova does:
// the newest first, a thousand at most, filtered by tags, name and status.
type largeNova struct {
	session // what else there is, nobody calls

	servers []domain.Server

	mu    sync.Mutex
	calls []string
}

func (n *largeNova) called(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, name)
}

func (n *largeNova) As(domain.Secret, string) session { return n }

func (n *largeNova) InRegion(string) openStack { return n }

func (n *largeNova) Servers(_ context.Context, q domain.ServerQuery) (page []domain.Server, more bool, err error) {
	n.called(fmt.Sprintf("list %d", q.Limit))
	after := slices.IndexFunc(n.servers, func(s domain.Server) bool { return s.ID == q.Marker })
	for _, s := range n.servers[after+1:] {
		tagged := len(q.Tags) == 0 || slices.ContainsFunc(q.Tags, func(tag string) bool { return slices.Contains(s.Tags, tag) })
		if !tagged || s.ProjectID != "p1" || q.Status != "" && s.Status != q.Status || !strings.Contains(s.Name, q.Name) {
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

// large is a service before a Nova with servers, of which those are tracked that origin gives an origin.
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
	if _, err := testkit.Connect(t, database).CopyFrom(t.Context(), pgx.Identifier{"instances"}, columns, pgx.CopyFromRows(rows)); err != nil {
		t.Fatal(err)
	}
	a := access{domain.OwnAccess(domain.Identity{ProjectID: "p1"}), nova}
	return service{cloud: nova, instances: postgres.Instances{DB: db}}, nova, a
}

// walk follows next to the end and says how many servers there are, how many pages, and the most calls that one page took Nova.
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

// TestTrackedCostsFewCalls, whatever the share of servers that are tracked, and where among the others they are.
func TestTrackedCostsFewCalls(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	oldest := func(origin string) func(int) string {
		return func(n int) string { return map[bool]string{true: origin}[n == 999] }
	}
	butOldest := func(n int) string { return map[bool]string{true: domain.OriginLaunched}[n != 999] }
	all := func(origin string) func(int) string { return func(int) string { return origin } }
	for name, tc := range map[string]struct {
		servers             int
		origin              func(int) string
		q                   query
		found, pages, calls int
	}{
		"one of a thousand":            {1000, oldest(domain.OriginLaunched), query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: 1}}, 1, 1, 1},
		"one that was connected":       {1000, oldest(domain.OriginConnected), query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: 100}}, 1, 1, 1},
		"none":                         {1000, all(""), query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: 1}}, 0, 1, 0},
		"all, launched":                {1000, all(domain.OriginLaunched), query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: 1000}}, 1000, 1, 10},
		"all, connected":               {1000, all(domain.OriginConnected), query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: 1000}}, 1000, 1, 1},
		"by pages of 300":              {1000, all(domain.OriginLaunched), query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: 300}}, 1000, 4, 3},
		"by name":                      {1000, all(domain.OriginLaunched), query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: 1, Name: "S-77"}}, 11, 12, 10},
		"by a status that none has":    {1000, all(domain.OriginLaunched), query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: 1, Status: "ERROR"}}, 0, 1, 10},
		"the only one not tracked":     {1000, butOldest, query{tracked: &no, ServerQuery: domain.ServerQuery{Limit: 1}}, 1, 1, 5},
		"none that is not, of 3000":    {3000, all(domain.OriginLaunched), query{tracked: &no, ServerQuery: domain.ServerQuery{Limit: 1}}, 0, 3, 5},
		"none that is not, by 1000":    {3000, all(domain.OriginLaunched), query{tracked: &no, ServerQuery: domain.ServerQuery{Limit: 1000}}, 0, 3, 1},
		"all are not tracked, by 1000": {1000, all(""), query{tracked: &no, ServerQuery: domain.ServerQuery{Limit: 1000}}, 1000, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, nova, a := large(t, tc.servers, tc.origin)
			found, pages, calls := walk(t, s, nova, a, tc.q)
			if len(found) != tc.found || pages > tc.pages || calls > tc.calls {
				t.Errorf("%d servers in %d pages, one of which took %d calls: want %d in %d with %d", len(found), pages, calls, tc.found, tc.pages, tc.calls)
			}
			for id, times := range found {
				if times != 1 {
					t.Errorf("%s is listed %d times", id, times)
				}
			}
		})
	}
}

// TestTrackedLosesNone: what Nova does not know any more is left out, what it does not find by tag is found by id, and a marker that no
// instance has is refused as Nova would.
func TestTrackedLosesNone(t *testing.T) {
	t.Parallel()
	s, nova, a := large(t, 40, func(int) string { return domain.OriginLaunched })
	nova.servers[3].Tags = nil                  // its owner has removed them
	nova.servers[5].Tags = nova.servers[6].Tags // or copied
	nova.servers[8].ProjectID = "p2"            // an admin sees those of all
	gone := nova.servers[7].ID                  // deleted since the last poll
	nova.servers = slices.Delete(nova.servers, 7, 8)
	yes := true
	for _, limit := range []int{1, 7, 100} {
		found, _, _ := walk(t, s, nova, a, query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: limit}})
		if len(found) != 38 || found[gone] != 0 {
			t.Errorf("by %d: %d servers", limit, len(found))
		}
	}
	_, _, err := s.List(t.Context(), a, query{tracked: &yes, ServerQuery: domain.ServerQuery{Limit: 1, Marker: uuid.NewString()}})
	if apperr.CodeOf(err) != apperr.Invalid {
		t.Errorf("an unknown marker: %v", err)
	}
}

// clock is a database's clock without connections.
type clock struct{ connectionStore }

func (clock) Now(context.Context) (time.Time, error) { return time.Now(), nil }

// TestConnectedMetadata is stored, as it is of a server that is connected through a connection: orders with reuse choose by it.
func TestConnectedMetadata(t *testing.T) {
	t.Parallel()
	s, nova, a := large(t, 1, func(int) string { return "" })
	s.connections, s.wake = clock{}, func(...string) {}
	a.Identity.Roles = []string{"member"}
	nova.servers[0].Metadata = map[string]string{"pool": "blue"}
	done, err := s.Connect(t.Context(), a, nova.servers[0].ID, uuid.Nil)
	if err != nil || !done.made || done.instance.Spec.Metadata["pool"] != "blue" {
		t.Errorf("got %+v %v", done.instance, err)
	}
}
