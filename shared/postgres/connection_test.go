package postgres_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// newConnection is a connection of the project p1 that u1 has delegated, not yet stored.
func newConnection() domain.Connection {
	three := 3
	return domain.Connection{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", DomainID: "d1", UserID: "u1", Name: "build ✓", Kind: domain.CredentialConnection,
		AuthURL: "https://keystone.example.com/v3", Region: "west", DelegationID: "c1", Secret: []byte("sealed"),
		ActsAs:  domain.ActsAs{UserID: "u9", UserName: "joe", ProjectID: "p9", ProjectName: "web", Roles: []string{"member"}, Unrestricted: true},
		Actions: []domain.Permission{domain.MayAllocate, domain.MayStart}, Quota: domain.ConnectionQuota{Instances: &three}, UsableBy: []string{"u2", "p2"},
		Flavors: []domain.Flavor{{ID: "1", Name: "tiny", VCPUs: 1, RAMMB: 512, DiskGB: 1, Public: true}}, Status: domain.ConnectionActive,
		ExpiresAt: time.Now().Add(48 * time.Hour).UTC().Truncate(time.Microsecond), IdleTimeout: 24 * time.Hour,
	}
}

func storedConnection(t *testing.T, store postgres.Connections, c domain.Connection) domain.Connection {
	t.Helper()
	stored, err := store.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// delegator is of the project p1, and may act there.
var delegator = domain.Identity{UserID: "u1", ProjectID: "p1", Roles: []string{"member"}}

// TestConnectionIsKept as it is, but for its secret, which only run-connections reads.
func TestConnectionIsKept(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Connections{DB: db}
	want := newConnection()
	stored := storedConnection(t, store, want)
	if stored.CreatedAt.IsZero() || stored.UpdatedAt.IsZero() || stored.CheckedAt.IsZero() || !stored.EndsAt().Equal(stored.CreatedAt.Add(24*time.Hour)) {
		t.Errorf("its times are %s, %s and %s", stored.CreatedAt, stored.UpdatedAt, stored.EndsAt())
	}
	want.CreatedAt, want.UpdatedAt, want.Secret, want.Revoked = stored.CreatedAt, stored.UpdatedAt, nil, true // there is no trust
	want.CheckedAt = stored.CheckedAt                                                                         // Keystone has just accepted it
	got, err := store.Get(t.Context(), delegator, want.ID)
	if diff := cmp.Diff(want, got); err != nil || diff != "" || cmp.Diff(want, stored) != "" {
		t.Errorf("%v %s", err, diff)
	}
	if _, err := store.Create(t.Context(), want); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("once more: %v", err)
	}
	event := testkit.Scalar[string](t, conn, "select project_id || ' ' || seq || ' ' || connection_id || ' ' || data from events where subject = $1", want.ID.String())
	if event != fmt.Sprintf(`p1 1 %[1]s {"status": "active", "connection_id": "%[1]s"}`, want.ID) {
		t.Errorf("its event is %s", event)
	}

	trust := newConnection()
	trust.Kind, trust.Secret, trust.AuthURL, trust.Region, trust.Quota, trust.IdleTimeout, trust.UsableBy = domain.TrustConnection, nil, "", "", domain.ConnectionQuota{}, 0, []string{}
	stored = storedConnection(t, store, trust)
	trust.CreatedAt, trust.UpdatedAt, trust.CheckedAt = stored.CreatedAt, stored.UpdatedAt, stored.CheckedAt
	trust.TrustExpiresAt = stored.ExpiresAt.Add(domain.TrustSpare)
	if diff := cmp.Diff(trust, stored); diff != "" || !stored.EndsAt().Equal(trust.ExpiresAt) {
		t.Error(diff)
	}
	if revoked := testkit.Pairs(t, conn, "select kind, revoked::int from connections"); revoked["trust"] != 0 || revoked["application_credential"] != 1 {
		t.Errorf("what is still to be taken back in Keystone is wrong: %v", revoked)
	}
}

// TestConnectionsAreShown to their project, and to whoever may act through them.
func TestConnectionsAreShown(t *testing.T) {
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
		{"u2", "p5", "reader", "n", "", "n"},
		{"u2", "p2", "member", "nt", "", "nt"},
		{"u5", "p2", "member", "t", "", "t"},
		{"u5", "p2", "reader", "", "", ""},
		{"u1", "p5", "admin", "", "", ""}, // in another project he is anybody
		{"p2", "u2", "admin", "nt", "", "nt"},
	} {
		who := domain.Identity{UserID: tc.user, ProjectID: tc.project, Roles: []string{tc.role}}
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
		got := []string{shown.String(), listed(t, store, who, false, ids), listed(t, store, who, true, ids), usableNow.String()}
		if want := []string{tc.shown, tc.listed, tc.usable, tc.usable}; !slices.Equal(got, want) {
			t.Errorf("%+v: got %v, want %v", who, got, want)
		}
	}
}

// listed are the connections of a list in one word, read page by page.
func listed(t *testing.T, store postgres.Connections, who domain.Identity, usable bool, ids map[uuid.UUID]string) string {
	t.Helper()
	var word strings.Builder
	var marker uuid.UUID
	for {
		page, err := store.List(t.Context(), who, domain.ConnectionQuery{Usable: usable, Limit: 2, Marker: marker})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page {
			word.WriteString(ids[c.ID])
			marker = c.ID
		}
		if len(page) < 2 {
			return word.String()
		}
	}
}

// TestConnectionEnds once, with its event, and its secret goes. Only a deletion follows another end.
func TestConnectionEnds(t *testing.T) {
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
		if !testkit.Scalar[bool](t, conn, "select secret is null and seq = (select count(*) from events where subject = id::text) from connections where id = $1", c.ID) {
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
	if want := fmt.Sprintf(`{"reason": "gone", "status": "lost", "connection_id": "%s", "previous_status": "active"}`, c.ID); data != want {
		t.Errorf("its event is %s", data)
	}
	got, err := store.Get(t.Context(), delegator, c.ID)
	if err != nil || got.Status != domain.ConnectionLost || got.Reason != "gone" {
		t.Errorf("got %+v %v", got, err)
	}
	if page, err := store.List(t.Context(), delegator, domain.ConnectionQuery{Usable: true, Limit: 10}); err != nil || slices.ContainsFunc(page, func(l domain.Connection) bool { return l.ID == c.ID }) {
		t.Errorf("usable are %v: %v", page, err)
	}
}

// TestConnectionsOfAProjectAreBounded also when many are made at once. Those that have ended do not count.
func TestConnectionsOfAProjectAreBounded(t *testing.T) {
	t.Parallel()
	store := postgres.Connections{DB: open(t, testkit.Database(t))}
	first := storedConnection(t, store, newConnection())
	other := newConnection()
	other.ProjectID = "p2"
	storedConnection(t, store, other)
	var mu sync.Mutex
	refused := 0
	var all sync.WaitGroup
	for range domain.MaxConnections + 4 {
		all.Go(func() {
			_, err := store.Create(t.Context(), newConnection())
			mu.Lock()
			defer mu.Unlock()
			if apperr.CodeOf(err) == apperr.Conflict {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if refused != 5 {
		t.Errorf("%d were refused", refused)
	}
	if _, err := store.End(t.Context(), "p1", first.ID, domain.ConnectionExpired, "", false); err != nil {
		t.Fatal(err)
	}
	storedConnection(t, store, newConnection())
	if _, err := store.Create(t.Context(), newConnection()); apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("got %v", err)
	}
}

// TestUsedOfAConnection counts what has a server, or may get one.
func TestUsedOfAConnection(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Connections{DB: db}
	c, other := storedConnection(t, store, newConnection()), storedConnection(t, store, newConnection())
	for _, tc := range []struct {
		project, server, problem, state string
		connection                      uuid.UUID
		let                             bool
	}{
		{"p1", "s1", "", "active", c.ID, false},
		{"p1", "", "", "requested", c.ID, false},
		{"p1", "s2", "", "stopped", c.ID, true},             // let go: it counts until it is gone
		{"p1", "s3", `{"code": "x"}`, "error", c.ID, false}, // broken, but there
		{"p1", "", `{"code": "x"}`, "error", c.ID, false},   // refused
		{"p1", "s4", "", "deleted", c.ID, false},
		{"p1", "s5", "", "active", other.ID, false},
		{"p2", "s6", "", "active", c.ID, false}, // of no such connection there
	} {
		_, err := conn.Exec(t.Context(), `
insert into instances (project_id, id, position, connection_id, name, server_id, problem, state, origin, spec, disconnected_at)
values ($1, gen_random_uuid(), 0, $2, 'n', nullif($3, ''), nullif($4, '')::jsonb, $5, 'launched', '{"vcpus": 2, "ram_mb": 512}', case when $6 then now() end)`,
			tc.project, tc.connection, tc.server, tc.problem, tc.state, tc.let)
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := store.Get(t.Context(), delegator, c.ID)
	if want := (domain.Need{Instances: 4, VCPUs: 8, RAMMB: 2048}); err != nil || got.Used != want {
		t.Errorf("got %+v %v", got.Used, err)
	}
	page, err := store.List(t.Context(), delegator, domain.ConnectionQuery{Limit: 10})
	if err != nil || len(page) != 2 || page[0].Used != got.Used || page[1].Used.Instances != 1 {
		t.Errorf("listed with %+v %v", page, err)
	}
}

// TestEndOfConnection is its time, or that of its last use.
func TestEndOfConnection(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store := postgres.Connections{DB: db}
	c := storedConnection(t, store, newConnection())
	if _, err := conn.Exec(t.Context(), "update connections set last_used_at = created_at + interval '10 hours' where id = $1", c.ID); err != nil {
		t.Fatal(err)
	}
	used, now, err := store.Usable(t.Context(), delegator, c.ID)
	if err != nil || !used.EndsAt().Equal(c.CreatedAt.Add(34*time.Hour)) || now.Sub(c.CreatedAt) > time.Minute {
		t.Errorf("it ends at %s, now is %s: %v", used.EndsAt(), now, err)
	}
	for after, want := range map[time.Duration]apperr.Code{33 * time.Hour: "", 34 * time.Hour: apperr.Forbidden} {
		if err := used.Permits(c.CreatedAt.Add(after), domain.MayStart); apperr.CodeOf(err) != want {
			t.Errorf("after %s: %v", after, err)
		}
	}
	err = used.Permits(now, domain.MayAllocate, domain.MayDeallocate)
	if apperr.CodeOf(err) != apperr.Forbidden || !strings.Contains(err.Error(), "allocate, start") {
		t.Errorf("what is not permitted: %v", err)
	}
	used.Status, used.Reason = domain.ConnectionLost, "gone"
	if err := used.Permits(now); apperr.CodeOf(err) != apperr.DelegationLost || !strings.Contains(err.Error(), "gone") {
		t.Errorf("a lost one: %v", err)
	}
}
