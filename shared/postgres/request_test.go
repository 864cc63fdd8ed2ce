package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func paths(t *testing.T, store postgres.Requests, q domain.RequestQuery) []string {
	t.Helper()
	rows := must(store.List(t.Context(), q))(t)
	got := []string{}
	for _, r := range rows {
		got = append(got, r.Path)
	}
	return got
}

func TestListRequests(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Requests{DB: open(t, url)}
	full := domain.Request{
		ID: uuid.Must(uuid.NewV7()), Function: "servers", Method: "GET", Path: "/ä ✓", Status: 503,
		Duration: 1234 * time.Millisecond,
		UserID:   "u1", ProjectID: "p1", DomainID: "d1", RequestID: "req-1", Remote: "2001:db8::1", Code: "unavailable",
	}
	of := func(path, project, domainID string) domain.Request {
		r := request(path)
		r.ProjectID, r.DomainID = project, domainID
		return r
	}
	rows := []domain.Request{
		full, of("/2", "p1", "d1"), of("/3", "p2", "d1"), of("/4", "p3", "d2"), of("/5", "", ""),
		of("/6", "p1", "d1"), of("/console/session", "p4", "d2"),
	}
	rows[5].Method, rows[6].Method = "DELETE", "POST"
	insert(t, store, rows...)
	// A project's row is in its view only; one of no one (a refused token) in the cloud's only.
	projectOf := func(id, domainID string) domain.View {
		return domain.View{Scope: domain.ScopeProject, ProjectID: id, DomainID: domainID}
	}
	project, cloud := projectOf("p1", ""), domain.View{Scope: domain.ScopeCloud}
	ofDomain := domain.View{Scope: domain.ScopeDomain, DomainID: "d1"}
	for name, tc := range map[string]struct {
		q    domain.RequestQuery
		want string
	}{
		"a project":                 {domain.RequestQuery{View: project}, "/6,/2,/ä ✓"},
		"a project of the domain":   {domain.RequestQuery{View: projectOf("p1", "d1")}, "/6,/2,/ä ✓"},
		"a project of another":      {domain.RequestQuery{View: projectOf("p1", "d2")}, ""},
		"a project without any":     {domain.RequestQuery{View: projectOf("p9", "")}, ""},
		"a domain":                  {domain.RequestQuery{View: ofDomain}, "/6,/3,/2,/ä ✓"},
		"the cloud":                 {domain.RequestQuery{View: cloud}, "/console/session,/6,/5,/4,/3,/2,/ä ✓"},
		"the first page":            {domain.RequestQuery{View: project, Limit: 2}, "/6,/2"},
		"the next page":             {domain.RequestQuery{View: project, Limit: 2, Marker: rows[1].ID}, "/ä ✓"},
		"after the last":            {domain.RequestQuery{View: project, Marker: full.ID}, ""},
		"a marker of another's row": {domain.RequestQuery{View: project, Marker: rows[3].ID}, "/2,/ä ✓"},
		"since long ago": {
			domain.RequestQuery{View: project, Limit: 1, Since: time.Now().Add(-time.Hour)}, "/6",
		},
		"errors":                 {domain.RequestQuery{View: project, Only: domain.RequestErrors}, "/ä ✓"},
		"changes":                {domain.RequestQuery{View: cloud, Only: domain.RequestChanges}, "/6"},
		"since a moment to come": {domain.RequestQuery{View: project, Since: time.Now().Add(time.Hour)}, ""},
	} {
		if tc.q.Limit == 0 {
			tc.q.Limit = 10
		}
		if got := strings.Join(paths(t, store, tc.q), ","); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
	got := must(store.List(t.Context(), domain.RequestQuery{View: project, Limit: 10}))(t)
	full.Count = 1
	if diff := cmp.Diff(full, got[2], cmpopts.IgnoreFields(domain.Request{}, "At")); diff != "" {
		t.Error(diff)
	}
	if at := got[2].At; at.Location() != time.UTC || time.Since(at).Abs() > time.Minute {
		t.Errorf("its time is %s", at)
	}
}

// TestListRequestsRejectsViewWithoutOwner shows nothing: a check that was forgotten must not show everything.
func TestListRequestsRejectsViewWithoutOwner(t *testing.T) {
	t.Parallel()
	db := open(t, testkit.Database(t))
	requests, stats := postgres.Requests{DB: db}, postgres.Stats{DB: db}
	insert(t, requests, request("/"))
	now := time.Now().Truncate(time.Hour)
	for name, view := range map[string]domain.View{
		"nothing":                 {},
		"a project of no id":      {Scope: domain.ScopeProject},
		"a domain of no id":       {Scope: domain.ScopeDomain},
		"a project by its domain": {Scope: domain.ScopeProject, DomainID: "d1"},
		"a domain by a project":   {Scope: domain.ScopeDomain, ProjectID: "p1"},
		"an unknown scope":        {Scope: "galaxy", ProjectID: "p1", DomainID: "d1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows, err := requests.List(t.Context(), domain.RequestQuery{View: view, Limit: 10})
			series, err2 := stats.Series(t.Context(), view, now, now)
			if apperr.CodeOf(err) != apperr.Internal || apperr.CodeOf(err2) != apperr.Internal ||
				len(rows)+len(series) != 0 {
				t.Errorf("got %v %v, %v %v", rows, err, series, err2)
			}
		})
	}
}

// TestInsertRequestsIsAtomic: a COPY with one bad row writes nothing.
func TestInsertRequestsIsAtomic(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store := postgres.Requests{DB: open(t, url)}
	if err := store.Insert(t.Context(), []domain.Request{
		request("/1"), request("NUL \x00"),
		request("/3"),
	}); apperr.CodeOf(err) != apperr.Internal {
		t.Errorf("got %v", err)
	}
	insert(t, store)
	if n := testkit.Scalar[int](t, testkit.Pool(t, url), "select count(*)::int from requests"); n != 0 {
		t.Errorf("%d rows are there", n)
	}
}

// TestInsertOnce: a client that got no answer finds out whether the rows are there.
func TestInsertOnce(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), testkit.Database(t)
	store, conn := postgres.Requests{DB: open(t, url)}, testkit.Connect(t, url)
	good, bad := request("/"), request("NUL \x00 is no text")
	for name, tc := range map[string]struct {
		rows []domain.Request
		want bool
	}{"stored": {[]domain.Request{good}, true}, "rejected": {[]domain.Request{request("/"), bad}, false}} {
		transaction, err := store.InsertOnce(ctx, tc.rows)
		if (err == nil) != tc.want || transaction == "" {
			t.Errorf("%s: transaction %q, %v", name, transaction, err)
		}
		if got, err := store.Committed(ctx, transaction); err != nil || got != tc.want {
			t.Errorf("%s: committed %t, %v", name, got, err)
		}
	}
	wantValue(t, conn, 1, "%d rows are stored", "select count(*)::int from requests")
	tx := must(conn.Begin(ctx))(t)
	running := testkit.Scalar[string](t, conn, "select pg_current_xact_id()::text")
	wantCode(t, "one that runs", errOf(store.Committed(ctx, running)), apperr.Unavailable)
	noError(t, tx.Rollback(ctx))
	if isStored, err := store.Committed(ctx, running); err != nil || isStored {
		t.Errorf("when it has ended: %t, %v", isStored, err)
	}
}

// TestListRequestsByConnection: a list by connection has the rows of the connection's project, no matter whose token
// made them. Other projects do not see these rows.
func TestListRequestsByConnection(t *testing.T) {
	t.Parallel()
	store := postgres.Requests{DB: open(t, testkit.Database(t))}
	one, two, other := uuid.New(), uuid.New(), uuid.New()
	acted := func(path, project string, connection uuid.UUID, in, domainID string) domain.Request {
		r := request(path)
		r.ProjectID, r.DomainID, r.UserID, r.UserName = project, "of-"+project, "u-"+project, "name of "+project
		r.Used = domain.UsedConnection{ConnectionID: connection, ProjectID: in, DomainID: domainID}
		return r
	}
	rows := []domain.Request{
		acted("/1", "guest", one, "owner", "d1"), acted("/2", "owner", two, "owner", "d1"), acted("/3", "guest", other,
			"stranger", "d2"),
		request("/4"), acted("/5", "guest", one, "owner", "d1"),
	}
	rows[3].ProjectID = "owner"
	insert(t, store, rows...)
	project := func(id, domainID string) domain.View {
		return domain.View{Scope: domain.ScopeProject, ProjectID: id, DomainID: domainID}
	}
	owner, cloud := project("owner", ""), domain.View{Scope: domain.ScopeCloud}
	ofDomain := domain.View{Scope: domain.ScopeDomain, DomainID: "d2"}
	for name, tc := range map[string]struct {
		q    domain.RequestQuery
		want string
	}{
		"any of the owner's":          {domain.RequestQuery{View: owner, Acted: true}, "/5 /2 /1"},
		"one connection":              {domain.RequestQuery{View: owner, Acted: true, ConnectionID: one}, "/5 /1"},
		"the next page":               {domain.RequestQuery{View: owner, Acted: true, Marker: rows[4].ID}, "/2 /1"},
		"another project's":           {domain.RequestQuery{View: owner, Acted: true, ConnectionID: other}, ""},
		"who acts is not who owns":    {domain.RequestQuery{View: project("guest", ""), Acted: true}, ""},
		"the owner's, of the domain":  {domain.RequestQuery{View: project("owner", "d1"), Acted: true}, "/5 /2 /1"},
		"the owner's, of another one": {domain.RequestQuery{View: project("owner", "d2"), Acted: true}, ""},
		"a domain":                    {domain.RequestQuery{View: ofDomain, Acted: true}, "/3"},
		"the cloud":                   {domain.RequestQuery{View: cloud, Acted: true}, "/5 /3 /2 /1"},
		"without it, one's own":       {domain.RequestQuery{View: owner}, "/4 /2"},
		"and the guest's own":         {domain.RequestQuery{View: project("guest", "")}, "/5 /3 /1"},
	} {
		tc.q.Limit = 10
		if got := strings.Join(paths(t, store, tc.q), " "); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
	got := must(store.List(t.Context(), domain.RequestQuery{View: project("owner", ""), Acted: true, Limit: 1}))(t)
	rows[4].Count = 1
	if diff := cmp.Diff(rows[4], got[0], cmpopts.IgnoreFields(domain.Request{}, "At")); diff != "" {
		t.Error(diff)
	}
}

// TestMeasure adds up what the log and stored responses grew by within a day, and takes nothing off for a month that
// was dropped.
func TestMeasure(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t)
	store, conn := postgres.Requests{DB: open(t, url)}, testkit.Connect(t, url)
	measure := func() int64 {
		return must(store.Measure(t.Context()))(t)
	}
	if n := measure(); n != 0 {
		t.Errorf("at first: %d bytes", n)
	}
	list := make([]domain.Request, 5000)
	for i := range list {
		list[i] = request("/v1/servers")
	}
	insert(t, store, list...)
	// An hour later: the empty log of before, and one that was larger before that.
	if _, err := conn.Exec(t.Context(), `update request_log_sizes set hour = hour - interval '1 hour';
		insert into request_log_sizes select hour - interval '1 hour', 1000000000 from request_log_sizes;
		insert into request_log_sizes values (now() - interval '3 days', 0)`); err != nil {
		t.Fatal(err)
	}
	before := int64(0)
	for range 2 {
		if before = measure(); before < 5000*100 || before > 5000*2000 {
			t.Errorf("5000 rows are %d bytes", before)
		}
	}
	exec(t, conn, `insert into idempotency_keys
		select 'p1', sha256(n::text::bytea), '', gen_random_uuid(), decode(repeat(md5(n::text), 50), 'hex'), null, null,
			now(), now() from generate_series(1, 1000) n`)
	if n := measure() - before; n < 1000*800 {
		t.Errorf("1000 responses are %d bytes", n)
	}
	wantValue(t, conn, 3, "%d sizes are kept", "select count(*)::int from request_log_sizes")
}
