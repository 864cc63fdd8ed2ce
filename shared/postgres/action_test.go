package postgres_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// ask stores an action of an instance through the connection.
func (l testDB) ask(t *testing.T, c domain.Connection, instance uuid.UUID) domain.DelegatedAction {
	t.Helper()
	wanted := domain.DelegatedAction{
		ID: uuid.New(), ProjectID: c.ProjectID, ConnectionID: c.ID, InstanceID: instance, UserID: "u2",
		Request: domain.ActionRequest{Action: domain.Reboot, Hard: true}, Payload: []byte("sealed"),
	}
	stored, err := postgres.Actions{DB: l.DB}.Create(t.Context(), wanted)
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// take claims actions of the connection.
func (l testDB) take(
	t *testing.T, c domain.Connection, claimFor time.Duration, limit int,
) (domain.Claim, []domain.DelegatedAction) {
	t.Helper()
	claim, taken, err := postgres.Actions{DB: l.DB}.Claim(t.Context(), c.ProjectID, c.ID, claimFor, limit)
	if err != nil {
		t.Fatal(err)
	}
	return claim, taken
}

// TestActions: the actions of one instance run one after the other, in their order; actions of several instances run at
// the same time.
func TestActions(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	actions := postgres.Actions{DB: l.DB}
	c, other := l.storeConnection(t, domain.ConnectionQuota{}, nil), l.storeConnection(t, domain.ConnectionQuota{}, nil)
	one, two := uuid.New(), uuid.New()
	first, second, third := l.ask(t, c, one), l.ask(t, c, one), l.ask(t, c, two)
	if _, taken := l.take(t, other, time.Minute, 10); len(taken) != 0 {
		t.Errorf("another connection's are taken: %+v", taken)
	}
	claim, taken := l.take(t, c, time.Minute, 10)
	if len(taken) != 2 || taken[0].InstanceID == taken[1].InstanceID {
		t.Fatalf("taken are %+v", taken)
	}
	for _, a := range taken {
		if a.ID == second.ID || a.Request != first.Request || string(a.Payload) != "sealed" || a.UserID != "u2" ||
			a.Status != domain.ActionRunning {
			t.Errorf("taken is %+v", a)
		}
	}
	if _, taken := l.take(t, c, time.Minute, 10); len(taken) != 0 {
		t.Errorf("taken twice: %+v", taken)
	}
	why := &domain.Problem{Code: "conflict", Detail: "why"}
	if err := actions.End(t.Context(), first, claim, why); err != nil {
		t.Error(err)
	}
	if err := actions.End(t.Context(), first, claim, nil); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("it ends twice: %v", err)
	}
	ended, err := actions.Get(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: c.ID}, first.ID)
	if err != nil || ended.Status != domain.ActionFailed || ended.Problem == nil || *ended.Problem != *why ||
		ended.Payload != nil {
		t.Errorf("ended is %+v %v", ended, err)
	}
	if err := actions.Release(t.Context(), third, claim, -time.Second); err != nil {
		t.Error(err)
	}
	if _, taken := l.take(t, c, time.Minute, 1); len(taken) != 1 || taken[0].ID != second.ID {
		t.Errorf("taken is %+v, want the second", taken)
	}
	for _, through := range []domain.Filter{
		{ProjectID: "p1", ConnectionID: other.ID},
		{ProjectID: "p2", ConnectionID: c.ID},
	} {
		if _, err := actions.Get(t.Context(), through, first.ID); apperr.CodeOf(err) != apperr.NotFound {
			t.Errorf("%+v: %v", through, err)
		}
	}
	var events int
	err = l.conn.QueryRow(t.Context(), `select count(*) from events where subject = $1 and type = $2 and connection_id = $3
and (seq = 1 and data->>'status' = 'running' or seq = 2 and data->>'status' = 'failed'
  and data->>'previous_status' = 'running' and data->'fault'->>'detail' = 'why')`,
		first.ID.String(), domain.ActionEvent, c.ID).Scan(&events)
	if err != nil || events != 2 {
		t.Errorf("%d events %v", events, err)
	}
}

// TestActionsOfDeadReplica: the actions can be claimed again when the dead replica's claim expires. Then its writes
// fail.
func TestActionsOfDeadReplica(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	actions := postgres.Actions{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	a := l.ask(t, c, uuid.New())
	dead, _ := l.take(t, c, -time.Second, 1)
	claim, taken := l.take(t, c, time.Minute, 1)
	if len(taken) != 1 {
		t.Fatal("it is not free")
	}
	if err := actions.Release(t.Context(), a, dead, -time.Second); err != nil {
		t.Error(err)
	}
	if err := actions.End(t.Context(), a, dead, nil); !errors.Is(err, domain.ErrFenced) {
		t.Errorf("the dead one ends it: %v", err)
	}
	if err := actions.End(t.Context(), a, claim, nil); err != nil {
		t.Error(err)
	}
	got, err := actions.Get(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: c.ID}, a.ID)
	if err != nil || got.Status != domain.ActionDone {
		t.Errorf("got %+v %v", got, err)
	}
}

// TestClaimActionsConcurrently: many replicas that claim at once take each action once.
func TestClaimActionsConcurrently(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	const n = 20
	for range n {
		l.ask(t, c, uuid.New())
	}
	var mu sync.Mutex
	seen := map[uuid.UUID]int{}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range n {
				_, taken := l.take(t, c, time.Minute, 3)
				mu.Lock()
				for _, a := range taken {
					seen[a.ID]++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	for id, times := range seen {
		if times != 1 {
			t.Errorf("%s was taken %d times", id, times)
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d were taken", len(seen), n)
	}
}

// TestCreateActionRejectsEndedConnection: an ended connection gets no action; an action through an active one records
// that it is used.
func TestCreateActionRejectsEndedConnection(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	l.ask(t, c, uuid.New())
	var used bool
	if err := l.conn.QueryRow(t.Context(), "select last_used_at is not null from connections").Scan(&used); err != nil ||
		!used {
		t.Errorf("it is noted as used: %t %v", used, err)
	}
	l.exec(t, "update connections set status = 'expired'")
	_, err := postgres.Actions{DB: l.DB}.Create(t.Context(),
		domain.DelegatedAction{
			ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(),
			Request: domain.ActionRequest{Action: domain.Stop},
		})
	if apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("got %v", err)
	}
	// Nor when as many wait as may.
	l.exec(t, "update connections set status = 'active'")
	l.exec(t, `insert into actions (project_id, id, connection_id, instance_id, user_id, verb) select 'p1',
  gen_random_uuid(), $1, gen_random_uuid(), 'u', 'stop' from generate_series(1, 1000)`, c.ID)
	_, err = postgres.Actions{DB: l.DB}.Create(t.Context(),
		domain.DelegatedAction{
			ID: uuid.New(), ProjectID: "p1", ConnectionID: c.ID, InstanceID: uuid.New(),
			Request: domain.ActionRequest{Action: domain.Stop},
		})
	if apperr.CodeOf(err) != apperr.Conflict {
		t.Errorf("got %v", err)
	}
}
