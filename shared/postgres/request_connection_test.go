package postgres_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestListRequestsByConnection: a list by connection has the rows of the connection's project, whoever's token made
// them. Other projects do not see these rows.
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
	for name, tc := range map[string]struct {
		q    domain.RequestQuery
		want []string
	}{
		"any of the owner's": {
			domain.RequestQuery{View: project("owner", ""), Acted: true},
			[]string{"/5", "/2", "/1"},
		},
		"one connection": {
			domain.RequestQuery{View: project("owner", ""), Acted: true, ConnectionID: one},
			[]string{"/5", "/1"},
		},
		"the next page": {domain.RequestQuery{
			View: project("owner", ""), Acted: true, ConnectionID: one,
			Marker: rows[4].ID,
		}, []string{"/1"}},
		"another project's": {
			domain.RequestQuery{View: project("owner", ""), Acted: true, ConnectionID: other},
			[]string{},
		},
		"who acts is not who owns": {domain.RequestQuery{View: project("guest", ""), Acted: true}, []string{}},
		"the owner's, of the domain": {
			domain.RequestQuery{View: project("owner", "d1"), Acted: true},
			[]string{"/5", "/2", "/1"},
		},
		"the owner's, of another one": {domain.RequestQuery{View: project("owner", "d2"), Acted: true}, []string{}},
		"a domain": {domain.RequestQuery{
			View:  domain.View{Scope: domain.ScopeDomain, DomainID: "d2"},
			Acted: true,
		}, []string{"/3"}},
		"the cloud": {
			domain.RequestQuery{View: domain.View{Scope: domain.ScopeCloud}, Acted: true},
			[]string{"/5", "/3", "/2", "/1"},
		},
		"without it, one's own": {domain.RequestQuery{View: project("owner", "")}, []string{"/4", "/2"}},
		"and the guest's own":   {domain.RequestQuery{View: project("guest", "")}, []string{"/5", "/3", "/1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.q.Limit = 10
			if diff := cmp.Diff(tc.want, paths(t, store, tc.q)); diff != "" {
				t.Error(diff)
			}
		})
	}
	got, err := store.List(t.Context(), domain.RequestQuery{View: project("owner", ""), Acted: true, Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	rows[4].Count = 1
	if diff := cmp.Diff(rows[4], got[0], cmpopts.IgnoreFields(domain.Request{}, "At")); diff != "" {
		t.Error(diff)
	}
}

// TestPartitionIndexes: what partitions lack of an index is built by the next migrate, also after a build that broke
// off, and a new partition has it.
func TestPartitionIndexes(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	lacking := func() int {
		return testkit.Scalar[int](t, conn, `
select count(*)::int from pg_inherits p where p.inhparent = 'requests'::regclass and not exists (
    select from pg_inherits i join pg_index x on x.indexrelid = i.inhrelid
    where i.inhparent = 'requests_acted'::regclass and x.indrelid = p.inhrelid and x.indisvalid)`)
	}
	if n := lacking(); n != 0 {
		t.Fatalf("%d partitions have no part of the index after migrate", n)
	}
	if err := (postgres.Requests{DB: open(t, database)}).Maintain(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if n := lacking(); n != 0 {
		t.Errorf("%d partitions have none after Maintain", n)
	}
	// As migration 015 leaves a partitioned log, with one partition on which an index build failed.
	for _, sql := range []string{
		"drop index requests_acted", `create index requests_acted on only requests (acted_in, id desc)
  where connection_id is not null`,
		"create index requests_default_acted on requests_default (acted_in)",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if n := lacking(); n < 3 {
		t.Fatalf("%d partitions lack the index, want all", n)
	}
	for range 2 {
		if _, err := postgres.Migrate(t.Context(), postgres.Config{
			URL: domain.Secret(database), MaxConns: 1,
		}); err != nil {
			t.Fatal(err)
		}
		if n := lacking(); n != 0 {
			t.Errorf("%d partitions have none after migrate", n)
		}
	}
	if n := testkit.Scalar[int](t, conn, "select count(*)::int from pg_index where not indisvalid"); n != 0 {
		t.Errorf("%d indexes are invalid", n)
	}
}
