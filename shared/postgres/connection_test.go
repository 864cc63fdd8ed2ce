package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// newConnection is a connection of the project p1 that u1 has delegated, not yet stored.
func newConnection() domain.Connection {
	three := 3
	return domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", DomainID: "d1", UserID: "u1", Name: "build ✓",
		Kind:    domain.CredentialConnection,
		AuthURL: "https://keystone.example.com/v3", Region: "west", DelegationID: "c1", Secret: []byte("sealed"),
		ActsAs: domain.ActsAs{
			UserID: "u9", UserName: "joe", ProjectID: "p9", ProjectName: "web", Roles: []string{"member"},
			Unrestricted: true,
		},
		Actions: []domain.Permission{
			domain.MayAllocate,
			domain.MayStart,
		}, Quota: domain.ConnectionQuota{Instances: &three}, UsableBy: []string{"u2", "p2"},
		Flavors: []domain.Flavor{{
			ID: "1", Name: "tiny", VCPUs: 1, RAMMB: 512, DiskGB: 1,
			Public: true,
		}}, Status: domain.ConnectionActive,
		ExpiresAt: time.Now().Add(48 * time.Hour).UTC().Truncate(time.Microsecond), IdleTimeout: 24 * time.Hour,
	}
}

func storedConnection(t *testing.T, store postgres.Connections, c domain.Connection) domain.Connection {
	t.Helper()
	return must(store.Create(t.Context(), c))(t)
}

// delegator is of the project p1, and may act there.
var delegator = domain.Identity{UserID: "u1", ProjectID: "p1", WriteRoles: []string{"member"}}

// TestCreateConnection: a connection is stored unchanged. Only run-connections can read its secret.
func TestCreateConnection(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Connections{DB: db}
	want := newConnection()
	stored := storedConnection(t, store, want)
	if stored.CreatedAt.IsZero() || stored.UpdatedAt.IsZero() || stored.CheckedAt.IsZero() ||
		!stored.EndsAt().Equal(stored.CreatedAt.Add(24*time.Hour)) {
		t.Errorf("its times are %s, %s and %s", stored.CreatedAt, stored.UpdatedAt, stored.EndsAt())
	}
	// there is no trust
	want.CreatedAt, want.UpdatedAt, want.Secret, want.Revoked = stored.CreatedAt, stored.UpdatedAt, nil, true
	want.CheckedAt, want.Generation, want.Seq = stored.CheckedAt, 1, 1
	got, err := store.Get(t.Context(), delegator, want.ID)
	if diff := cmp.Diff(want, got); err != nil || diff != "" || cmp.Diff(want, stored) != "" {
		t.Errorf("%v %s", err, diff)
	}
	wantCode(t, "once more", errOf(store.Create(t.Context(), want)), apperr.Conflict)
	event := testkit.Scalar[string](t, conn,
		`select project_id || ' ' || seq || ' ' || connection_id || ' ' || data from events where subject = $1`, want.ID.String())
	if event != fmt.Sprintf(`p1 1 %[1]s {"status": "active", "connection_id": "%[1]s"}`, want.ID) {
		t.Errorf("its event is %s", event)
	}

	trust := newConnection()
	trust.Kind, trust.Secret, trust.AuthURL, trust.Region = domain.TrustConnection, nil, "", ""
	trust.Quota, trust.IdleTimeout, trust.UsableBy = domain.ConnectionQuota{}, 0, []string{}
	trust.TrustExpiresAt = trust.ExpiresAt.Add(domain.TrustMargin)
	stored = storedConnection(t, store, trust)
	trust.CreatedAt, trust.UpdatedAt = stored.CreatedAt, stored.UpdatedAt
	trust.CheckedAt, trust.Generation, trust.Seq = stored.CheckedAt, 1, 1
	if diff := cmp.Diff(trust, stored); diff != "" || !stored.EndsAt().Equal(trust.ExpiresAt) {
		t.Error(diff)
	}
	if revoked := testkit.Pairs(t, conn, "select kind, revoked::int from connections"); revoked["trust"] != 0 ||
		revoked["application_credential"] != 1 {
		t.Errorf("what is still to be taken back in Keystone is wrong: %v", revoked)
	}
}

// TestConnectionVisibility: a connection is visible to its project, and to anyone who can act through it.
func TestConnectionVisibility(t *testing.T) {
	t.Parallel()
	store := postgres.Connections{DB: open(t, testkit.Database(t))}
	byName, byTeam, closed := newConnection(), newConnection(), newConnection()
	byName.UsableBy, byTeam.UsableBy, closed.UsableBy = []string{"u2"}, []string{"p2"}, []string{}
	ids := map[uuid.UUID]string{byName.ID: "n", byTeam.ID: "t", closed.ID: "c"}
	for _, c := range []domain.Connection{byName, byTeam, closed} {
		storedConnection(t, store, c)
	}
	for _, tc := range []struct {
		user, project, role   string
		shown, listed, usable string
	}{
		{"u1", "p1", "member", "ntc", "ntc", "ntc"},
		{"u1", "p1", "reader", "ntc", "ntc", ""}, // who delegated, with a token that only reads
		{"u5", "p1", "member", "ntc", "ntc", ""},
		{"u2", "p1", "member", "ntc", "ntc", "n"},
		{"u2", "p5", "reader", "", "", ""}, // named, with a token that only reads
		{"u2", "p2", "member", "nt", "", "nt"},
		{"u5", "p2", "member", "t", "", "t"},
		{"u5", "p2", "reader", "", "", ""},
		{"u1", "p5", "admin", "", "", ""}, // in another project he is anybody
		{"p2", "u2", "admin", "nt", "", "nt"},
	} {
		who := domain.Identity{UserID: tc.user, ProjectID: tc.project}
		if tc.role != "reader" {
			who.WriteRoles = []string{tc.role}
		}
		var shown, usableNow strings.Builder
		for _, c := range []domain.Connection{byName, byTeam, closed} {
			if _, err := store.Get(t.Context(), who, c.ID); err == nil {
				shown.WriteString(ids[c.ID])
			} else if apperr.CodeOf(err) != apperr.NotFound {
				t.Error(err)
			}
			_, now, err := store.Usable(t.Context(), who, c.ID)
			if err == nil {
				usableNow.WriteString(ids[c.ID])
			} else if apperr.CodeOf(err) != apperr.NotFound || now != (time.Time{}) {
				t.Error(err)
			}
		}
		got := []string{
			shown.String(), listed(t, store, who, false, ids), listed(t, store, who, true, ids),
			usableNow.String(),
		}
		if want := []string{tc.shown, tc.listed, tc.usable, tc.usable}; !slices.Equal(got, want) {
			t.Errorf("%+v: got %v, want %v", who, got, want)
		}
	}
}

// listed are the connections of a list in one word, read page by page.
func listed(
	t *testing.T, store postgres.Connections, who domain.Identity, usable bool, ids map[uuid.UUID]string,
) string {
	t.Helper()
	var word strings.Builder
	var marker uuid.UUID
	for {
		page := must(store.List(t.Context(), who, domain.ConnectionQuery{Usable: usable, Limit: 2, Marker: marker}))(t)
		for _, c := range page {
			word.WriteString(ids[c.ID])
			marker = c.ID
		}
		if len(page) < 2 {
			return word.String()
		}
	}
}

// TestEndConnection: a connection ends once, with one event, and its secret is deleted. Only a deletion may follow
// another end.
func TestEndConnection(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Connections{DB: db}
	for _, tc := range []struct {
		ends string
		want string // which of them did something
	}{
		{"expired expired", "yn"},
		{"expired lost deleted deleted", "ynyn"},
		{"lost expired deleted", "yny"},
		{"deleted expired lost", "ynn"},
	} {
		c := storedConnection(t, store, newConnection())
		var did strings.Builder
		for status := range strings.FieldsSeq(tc.ends) {
			ended, err := store.End(t.Context(), "p1", c.ID, domain.ConnectionStatus(status), "because "+status, false)
			if err != nil {
				t.Fatal(err)
			}
			did.WriteString(map[bool]string{true: "y", false: "n"}[ended])
		}
		if did.String() != tc.want {
			t.Errorf("%s: %s, want %s", tc.ends, did.String(), tc.want)
		}
		if !testkit.Scalar[bool](t, conn,
			`select secret is null and seq = (select count(*) from events where subject = id::text) from connections
  where id = $1`, c.ID) {
			t.Errorf("%s: its secret is kept, or its events are not as many as its changes", tc.ends)
		}
	}
	c := storedConnection(t, store, newConnection())
	if ended, err := store.End(t.Context(), "p2", c.ID, domain.ConnectionDeleted, "", true); ended || err != nil {
		t.Errorf("from another project: %v %v", ended, err)
	}
	if ended, err := store.End(t.Context(), "p1", c.ID, domain.ConnectionLost, "gone", true); !ended || err != nil {
		t.Errorf("%v %v", ended, err)
	}
	data := testkit.Scalar[string](t, conn, "select data::text from events where subject = $1 and seq = 2", c.ID.String())
	if want := fmt.Sprintf(`{"reason": "gone", "status": "lost", "connection_id": "%s", "previous_status": "active"}`,
		c.ID); data != want {
		t.Errorf("its event is %s", data)
	}
	got, err := store.Get(t.Context(), delegator, c.ID)
	if err != nil || got.Status != domain.ConnectionLost || got.Reason != "gone" {
		t.Errorf("got %+v %v", got, err)
	}
	if page, err := store.List(t.Context(), delegator, domain.ConnectionQuery{Usable: true, Limit: 10}); err != nil ||
		slices.ContainsFunc(page, func(l domain.Connection) bool { return l.ID == c.ID }) {
		t.Errorf("usable are %v: %v", page, err)
	}
}

// queries counts the queries of a pool.
type queries struct{ atomic.Int32 }

func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	q.Add(1)
	return ctx
}

func (q *queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestListCountsTogether: a page takes two queries, however many connections it has, and each has its own counts.
func TestListCountsTogether(t *testing.T) {
	t.Parallel()
	count, url := &queries{}, testkit.Database(t)
	db := must(postgres.Open(postgres.Config{URL: domain.Secret(url), MaxConns: 4}, count))(t)
	t.Cleanup(db.Close)
	store, conn := postgres.Connections{DB: db}, testkit.Connect(t, url)
	const pages = 20
	for n := range pages {
		c := newConnection()
		must(store.Create(t.Context(), c))(t)
		_, err := conn.Exec(t.Context(), `
insert into instances (project_id, id, position, name, state, origin, server_id, connection_id, spec)
select 'p1', gen_random_uuid(), 0, 'x', 'active', 'launched', gen_random_uuid(), $1, '{"vcpus": 2, "ram_mb": 512}'
from generate_series(1, $2::int)`, c.ID, n)
		if err != nil {
			t.Fatal(err)
		}
	}
	before := count.Load()
	who := domain.Identity{ProjectID: "p1", UserID: "u1", WriteRoles: []string{"member"}}
	found, err := store.List(t.Context(), who, domain.ConnectionQuery{Limit: 100, Marker: uuid.Nil})
	if got := count.Load() - before; err != nil || len(found) != pages || got != 2 {
		t.Fatalf("%d connections took %d queries: %v", len(found), got, err)
	}
	for n, c := range found {
		if want := (domain.Need{Instances: n, VCPUs: 2 * n, RAMMB: 512 * n}); c.Used != want {
			t.Errorf("connection %d: got %+v", n, c.Used)
		}
	}
}

// TestLeaseAndDeletionRace: of a lease that names a connection, and the connection's end, that begin at the same time,
// one is refused, whichever commits first.
func TestLeaseAndDeletionRace(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn, watch := testkit.Connect(t, database), testkit.Connect(t, database)
	connections := postgres.Connections{DB: open(t, database)}
	for name, tc := range map[string]struct {
		first string // in a transaction of another replica
		then  func(postgres.Leases, domain.Lease) error
	}{
		"the lease is first": {
			`insert into leases (project_id, id, domain_id, user_id, name, status, starts_at, ends_at, on_end, connection_id,
    shares_connection)
select project_id, gen_random_uuid(), 'd', 'u', 'l', 'pending', now(), now() + interval '1 h', 'shelve', id, true
from connections where id = $1`,
			func(_ postgres.Leases, l domain.Lease) error {
				_, err := connections.Delete(t.Context(), "p1", l.ConnectionID)
				return err
			},
		},
		"the end is first": {
			"update connections set status = 'deleted' where id = $1",
			func(s postgres.Leases, l domain.Lease) error {
				_, err := s.Create(t.Context(), domain.NewLease{Lease: l})
				return err
			},
		},
		"less is permitted first": {
			"update connections set actions = '{start}' where id = $1",
			func(s postgres.Leases, l domain.Lease) error {
				_, err := s.Create(t.Context(), domain.NewLease{Lease: l})
				return err
			},
		},
	} {
		wide := newConnection()
		wide.Actions = []domain.Permission{domain.MayStart, domain.MayStop, domain.MayShelve}
		c := storedConnection(t, connections, wide)
		lease := newLease(0, 1).Lease
		lease.Reservations, lease.ConnectionID, lease.SharesConnection = nil, c.ID, true
		tx := must(conn.BeginTx(t.Context(), pgx.TxOptions{}))(t)
		for _, sql := range []string{"select from connections where id = $1 for share", tc.first} {
			must(tx.Exec(t.Context(), sql, c.ID))(t)
		}
		done := make(chan error, 1)
		go func() { done <- tc.then(postgres.Leases(connections), lease) }()
		testkit.Eventually(t, 10*time.Second, "the other waits", func() bool {
			return testkit.Scalar[bool](t, watch, `
select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`)
		})
		noError(t, tx.Commit(t.Context()))
		if err := <-done; apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
