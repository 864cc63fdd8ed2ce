package postgres_test

import (
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

// newRequest is a request of u2 of the project p2 to the project p1, not yet stored.
func newRequest() domain.ConnectionRequest {
	three := 3
	return domain.ConnectionRequest{
		ID: uuid.Must(uuid.NewV7()), ProjectID: "p1", Grantee: domain.GranteeProject, Name: "nightly ✓",
		Why:       "we build at night",
		Requester: domain.Identity{UserID: "u2", UserName: "robot", ProjectID: "p2", ProjectName: "builds"},
		Terms: domain.Terms{
			Actions: []domain.Permission{
				domain.MayAllocate,
				domain.MayDeallocate,
			}, Quota: domain.ConnectionQuota{Instances: &three}, Duration: 48 * time.Hour,
		},
		Status: domain.RequestPending,
	}
}

func storedRequest(
	t *testing.T, store postgres.ConnectionRequests, r domain.ConnectionRequest,
) domain.ConnectionRequest {
	t.Helper()
	return must(store.Create(t.Context(), r))(t)
}

// requestEvents lists the events of a request: project, sequence number and status.
func requestEvents(t *testing.T, conn *pgx.Conn, id uuid.UUID) string {
	t.Helper()
	return testkit.Scalar[string](t, conn, `
select string_agg(project_id || ' ' || seq || ' ' || (data->>'status'), ', ' order by seq, project_id)
from events where subject = $1 and type = 'cloudfn.connection.request.v1' and data->>'request_id' = $1`, id.String())
}

// TestCreateConnectionRequest: a request is stored unchanged, and only the two projects that it concerns see it.
func TestCreateConnectionRequest(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	store := postgres.ConnectionRequests{DB: open(t, database)}
	want := newRequest()
	stored := storedRequest(t, store, want)
	if left := stored.ExpiresAt.Sub(stored.CreatedAt); left < domain.RequestTime-time.Minute ||
		left > domain.RequestTime+time.Minute {
		t.Errorf("it expires after %s", left)
	}
	want.ExpiresAt, want.CreatedAt, want.UpdatedAt = stored.ExpiresAt, stored.CreatedAt, stored.UpdatedAt
	if diff := cmp.Diff(want, stored); diff != "" {
		t.Error(diff)
	}
	if events := requestEvents(t, conn, want.ID); events != "p1 1 pending" {
		t.Errorf("its events are %s", events)
	}
	if data := testkit.Scalar[string](t, conn, "select data::text from events"); strings.Contains(data, "night") {
		t.Errorf("anybody's text is in the event %s", data)
	}
	soon := newRequest()
	soon.Terms.Duration, soon.Terms.ExpiresAt = 0, time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	if soon := storedRequest(t, store, soon); !soon.ExpiresAt.Equal(soon.Terms.ExpiresAt) {
		t.Errorf("what ends at %s can be granted until %s", soon.Terms.ExpiresAt, soon.ExpiresAt)
	}
	for project, sees := range map[string]bool{"p1": true, "p2": true, "p3": false, "": false, "u2": false} {
		got, err := store.Get(t.Context(), project, want.ID)
		if sees && cmp.Diff(want, got) != "" || sees != (err == nil) || !sees && apperr.CodeOf(err) != apperr.NotFound {
			t.Errorf("the project %q gets %+v %v", project, got, err)
		}
		for _, received := range []bool{true, false} {
			page, err := store.List(t.Context(), project, domain.ConnectionRequestQuery{
				Received: received,
				Statuses: []string{"pending"}, Limit: 1,
			})
			listed := len(page) == 1 && page[0].ID == want.ID
			if err != nil || listed != (received && project == "p1" || !received && project == "p2") {
				t.Errorf("the project %q lists %v (received %v): %v", project, page, received, err)
			}
		}
	}
	page, err := store.List(t.Context(), "p1", domain.ConnectionRequestQuery{
		Received: true, Limit: 10, Marker: want.ID,
	})
	if err != nil || len(page) != 1 || page[0].ID != soon.ID {
		t.Errorf("after the first come %v %v", page, err)
	}
}

// TestMaxConnectionRequests: the maximum holds also when many are created concurrently.
func TestMaxConnectionRequests(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	store := postgres.ConnectionRequests{DB: open(t, database)}
	var made, refused atomic.Int64
	concurrently(domain.MaxRequestsFrom+5, func(int) {
		_, err := store.Create(t.Context(), newRequest())
		switch {
		case err == nil:
			made.Add(1)
		case apperr.CodeOf(err) == apperr.Conflict && strings.Contains(err.Error(), "at most 20 pending requests"):
			refused.Add(1)
		default:
			t.Error(err)
		}
	})
	if made.Load() != domain.MaxRequestsFrom || refused.Load() != 5 {
		t.Errorf("%d were made, %d refused", made.Load(), refused.Load())
	}
	other := newRequest()
	other.Requester.ProjectID = "p3"
	storedRequest(t, store, other) // another project's bound is its own

	for n := range domain.MaxRequestsTo - domain.MaxRequestsFrom - 1 {
		r := newRequest()
		r.Requester.ProjectID = fmt.Sprint("q", n)
		storedRequest(t, store, r)
	}
	other = newRequest()
	other.Requester.ProjectID = "p4"
	if _, err := store.Create(t.Context(), other); apperr.CodeOf(err) != apperr.Conflict ||
		!strings.Contains(err.Error(), "at most 100 pending requests to project p1") {
		t.Errorf("one too many to a project: %v", err)
	}
	other.ProjectID = "p9"
	for range domain.MaxRequestsADay {
		other.ID = uuid.Must(uuid.NewV7())
		storedRequest(t, store, other)
		must(store.Withdraw(t.Context(), "p4", other.ID, "u2"))(t)
	}
	other.ID = uuid.Must(uuid.NewV7())
	_, err := store.Create(t.Context(), other)
	if e := apperr.As(err); e.Code != apperr.RateLimited || e.RetryAfter == 0 {
		t.Errorf("one too many for a day: %v", err)
	}
	must(conn.Exec(t.Context(),
		`update connection_requests set created_at = created_at - interval '1 day'
		where requester_project_id = 'p4'`))(t)
	storedRequest(t, store, other)
}

// TestGrantOnce: of many that grant concurrently one does, and a connection is stored only with its request.
func TestGrantOnce(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store, connections := postgres.ConnectionRequests{DB: db}, postgres.Connections{DB: db}
	r := storedRequest(t, store, newRequest())
	var claims, busy atomic.Int64
	concurrently(8, func(int) {
		_, claim, err := store.ClaimGrant(t.Context(), "p1", r.ID, "u1", []byte("a"), time.Minute)
		if err != nil {
			if e := apperr.As(err); e.Code != apperr.Conflict || e.RetryAfter == 0 {
				t.Error(err)
			}
			busy.Add(1)
			return
		}
		if !claim.Acquired { // it comes after the one that does
			return
		}
		claims.Add(1)
		c := newConnection()
		if _, err := connections.CreateGranted(t.Context(), c,
			domain.Grant{
				ProjectID: "p1", RequestID: r.ID, Claim: claim, UserID: "u1", SHA256: []byte("a"),
			}); err != nil {
			t.Error(err)
		}
	})
	if n := testkit.Scalar[int](t, conn, "select count(*) from connections"); claims.Load() != 1 || n != 1 {
		t.Errorf("%d had the claim, %d had to wait, and there are %d connections", claims.Load(), busy.Load(), n)
	}
	got, err := store.Get(t.Context(), "p2", r.ID)
	if err != nil || got.Status != domain.RequestGranted || got.DecidedBy != "u1" || got.ConnectionID == uuid.Nil {
		t.Errorf("got %+v %v", got, err)
	}
	if events := requestEvents(t, conn, r.ID); events != "p1 1 pending, p1 2 granted, p2 2 granted" {
		t.Errorf("its events are %s", events)
	}
	same, claim, err := store.ClaimGrant(t.Context(), "p1", r.ID, "u1", []byte("a"), time.Minute)
	if err != nil || claim.Acquired || same.ConnectionID != got.ConnectionID {
		t.Errorf("the same once more: %+v %v %v", same, claim, err)
	}
	for _, other := range [][2]string{{"u1", "b"}, {"u5", "a"}} {
		wantCode(t, "another grant", errOf2(store.ClaimGrant(t.Context(), "p1", r.ID, other[0], []byte(other[1]),
			time.Minute)), apperr.Conflict)
	}
	for _, project := range []string{"p2", "p3"} {
		if _, _, err := store.ClaimGrant(t.Context(), project, r.ID, "u1", []byte("a"),
			time.Minute); apperr.CodeOf(err) != apperr.NotFound {
			t.Errorf("the project %s: %v", project, err)
		}
	}
}

// TestGrantAfterClaimEnds: a claim that has expired, and a request that someone has ended meanwhile, give no
// connection.
func TestGrantAfterClaimEnds(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	db, conn := open(t, database), testkit.Connect(t, database)
	store, connections := postgres.ConnectionRequests{DB: db}, postgres.Connections{DB: db}
	for name, ends := range map[string]func(domain.ConnectionRequest) error{
		"withdrawn": func(r domain.ConnectionRequest) error {
			_, err := store.Withdraw(t.Context(), "p2", r.ID, "u2")
			return err
		},
		"declined": func(r domain.ConnectionRequest) error {
			_, err := store.Decline(t.Context(), "p1", r.ID, "u7", "no")
			return err
		},
		"released": func(r domain.ConnectionRequest) error {
			claim := domain.Claim{ID: testkit.Scalar[uuid.UUID](t, conn,
				"select claim_id from connection_requests where id = $1", r.ID)}
			if held, err := store.ReleaseGrant(t.Context(), "p1", r.ID, claim); !held || err != nil {
				t.Errorf("%v %v", held, err)
			}
			return nil
		},
		"claimed again": func(r domain.ConnectionRequest) error {
			_, _, err := store.ClaimGrant(t.Context(), "p1", r.ID, "u1", nil, time.Minute)
			return err
		},
		"expired": func(r domain.ConnectionRequest) error {
			_, err := conn.Exec(t.Context(),
				"update connection_requests set expires_at = clock_timestamp() where id = $1", r.ID)
			return err
		},
	} {
		r := storedRequest(t, store, newRequest())
		_, claim, err := store.ClaimGrant(t.Context(), "p1", r.ID, "u1", nil, -time.Second) // it has ended immediately
		if err != nil {
			t.Fatal(err)
		}
		if err := ends(r); err != nil {
			t.Fatal(name, err)
		}
		c := newConnection()
		if _, err := connections.CreateGranted(t.Context(), c,
			domain.Grant{ProjectID: "p1", RequestID: r.ID, Claim: claim}); apperr.CodeOf(err) != apperr.Conflict {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := connections.Get(t.Context(), delegator, c.ID); apperr.CodeOf(err) != apperr.NotFound {
			t.Errorf("%s: its connection is there: %v", name, err)
		}
	}
}

// TestConnectionRequestEnds: a request ends once, and only by those who may end it.
func TestConnectionRequestEnds(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	conn := testkit.Connect(t, database)
	store := postgres.ConnectionRequests{DB: open(t, database)}
	r := storedRequest(t, store, newRequest())
	for range 2 { // sent twice it is the same
		declined, err := store.Decline(t.Context(), "p1", r.ID, "u1", "not now")
		if err != nil || declined.Status != domain.RequestDeclined || declined.Reason != "not now" ||
			declined.DecidedBy != "u1" {
			t.Errorf("got %+v %v", declined, err)
		}
	}
	if _, err := store.Withdraw(t.Context(), "p2", r.ID, "u2"); apperr.CodeOf(err) != apperr.Conflict ||
		!strings.Contains(err.Error(), "declined") {
		t.Errorf("a declined one: %v", err)
	}
	if events := requestEvents(t, conn, r.ID); events != "p1 1 pending, p1 2 declined, p2 2 declined" {
		t.Errorf("its events are %s", events)
	}
	r = storedRequest(t, store, newRequest())
	wantCode(t, "a stranger", errOf(store.Withdraw(t.Context(), "p3", r.ID, "u2")), apperr.NotFound)
	wantCode(t, "a stranger", errOf(store.Decline(t.Context(), "p3", r.ID, "u2", "")), apperr.NotFound)
	must(store.Withdraw(t.Context(), "p2", r.ID, "u2"))(t)
	own := newRequest()
	own.Requester.ProjectID = "p1" // a program requests from the people of its own project
	own = storedRequest(t, store, own)
	late := storedRequest(t, store, newRequest())
	must(conn.Exec(t.Context(),
		"update connection_requests set expires_at = clock_timestamp() where status = 'pending'"))(t)
	if _, _, err := store.ClaimGrant(t.Context(), "p1", late.ID, "u1", nil,
		time.Minute); apperr.CodeOf(err) != apperr.Conflict || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("one that has expired: %v", err)
	}
	var ended atomic.Int64
	concurrently(4, func(int) {
		n, err := store.Expire(t.Context())
		if err != nil {
			t.Error(err)
		}
		ended.Add(int64(n))
	})
	if events := []string{requestEvents(t, conn, late.ID), requestEvents(t, conn, own.ID)}; ended.Load() != 2 ||
		!slices.Equal(events, []string{"p1 1 pending, p1 2 expired, p2 2 expired", "p1 1 pending, p1 2 expired"}) {
		t.Errorf("%d have ended with the events %v", ended.Load(), events)
	}
	noError(t, store.Retire(t.Context(), time.Hour))
	if _, err := store.Get(t.Context(), "p1", late.ID); err != nil {
		t.Errorf("it was deleted too early: %v", err)
	}
	must(conn.Exec(t.Context(),
		"update connection_requests set updated_at = updated_at - interval '2 hours'"))(t)
	noError(t, store.Retire(t.Context(), time.Hour))
	wantValue(t, conn, 0, "%d are kept", "select count(*) from connection_requests")
}
