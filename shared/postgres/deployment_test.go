package postgres_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func newDeployment(i domain.Instance) domain.Deployment {
	return domain.Deployment{
		ID: uuid.New(), ProjectID: i.ProjectID, InstanceID: i.ID, Image: "agent:1",
		TokenHash: []byte("hash " + i.ID.String()), Bundle: []byte("bundle"),
	}
}

// TestDeployment: only the token's holder fetches, for a minute, and says once that the agent is ready, until its time
// has ended.
func TestDeployment(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store := postgres.Deployments{DB: l.DB}
	c := l.storeConnection(t, domain.ConnectionQuota{}, nil)
	i, _ := l.connectNow(t, foreignServer(uuid.NewString(), c.ID))
	d := newDeployment(i)
	noError(t, store.Create(t.Context(), d, time.Minute))
	wantCode(t, "with another token", errOf(store.Fetch(t.Context(), d.ID, []byte("another"))), apperr.NotFound)
	wantCode(t, "ready with another token", store.Ready(t.Context(), d.ID, []byte("another")), apperr.NotFound)
	for range 2 {
		if bundle, err := store.Fetch(t.Context(), d.ID, d.TokenHash); err != nil || string(bundle) != "bundle" {
			t.Errorf("fetched %q %v", bundle, err)
		}
	}
	var done atomic.Int64
	concurrently(4, func(int) {
		switch err := store.Ready(t.Context(), d.ID, d.TokenHash); apperr.CodeOf(err) {
		case "":
			done.Add(1)
		case apperr.NotFound:
		default:
			t.Error(err)
		}
	})
	if done.Load() != 1 {
		t.Errorf("it was said %d times", done.Load())
	}
	wantCode(t, "fetched after that", errOf(store.Fetch(t.Context(), d.ID, d.TokenHash)), apperr.NotFound)
	agent, err := postgres.Instances{DB: l.DB}.Agent(t.Context(), "p1", i.ID)
	if err != nil || agent == nil || agent.DeploymentID != d.ID || agent.Image != "agent:1" || agent.ReadyAt == nil {
		t.Errorf("the agent is %+v %v", agent, err)
	}
	event := testkit.Scalar[string](t, l.conn,
		`select seq || ' ' || connection_id || ' ' || (data->>'deployment_id') from events where type = $1`, domain.AgentReadyEvent)
	if event != "2 "+c.ID.String()+" "+d.ID.String() {
		t.Errorf("the event is %s", event)
	}
}

// TestDeploymentsEnd by their time, by those that follow, and when Nova has refused them.
func TestDeploymentsEnd(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, instances := postgres.Deployments{DB: l.DB}, postgres.Instances{DB: l.DB}
	i, _ := l.connectNow(t, foreignServer(uuid.NewString(), uuid.Nil))
	if agent, err := instances.Agent(t.Context(), "p1", i.ID); err != nil || agent != nil {
		t.Errorf("before: %+v %v", agent, err)
	}
	late, refused := newDeployment(i), newDeployment(i)
	for _, d := range []domain.Deployment{late, refused} {
		noError(t, store.Create(t.Context(), d, time.Hour))
	}
	if agent, err := instances.Agent(t.Context(), "p1",
		i.ID); err != nil || agent.DeploymentID != refused.ID || agent.ReadyAt != nil {
		t.Errorf("the last is %+v %v", agent, err)
	}
	noError(t, store.Drop(t.Context(), "p2", refused.ID))
	if agent, _ := instances.Agent(t.Context(), "p1", i.ID); agent.DeploymentID != refused.ID {
		t.Error("another project has dropped it")
	}
	noError(t, store.Drop(t.Context(), "p1", refused.ID))
	if agent, _ := instances.Agent(t.Context(), "p1", i.ID); agent.DeploymentID != late.ID {
		t.Errorf("after a refusal the last is %+v", agent)
	}
	if agent, err := instances.Agent(t.Context(), "p2", i.ID); err != nil || agent != nil {
		t.Errorf("another project's: %+v %v", agent, err)
	}
	l.exec(t, "update deployments set expires_at = clock_timestamp()")
	_, err := store.Fetch(t.Context(), late.ID, late.TokenHash)
	if apperr.CodeOf(err) != apperr.NotFound || apperr.CodeOf(store.Ready(t.Context(), late.ID,
		late.TokenHash)) != apperr.NotFound {
		t.Errorf("after its time: %v", err)
	}
}

// TestReadyRejectsGoneInstance: an agent of a deleted or disconnected instance cannot report ready, and no event
// follows the instance's last one.
func TestReadyRejectsGoneInstance(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store := postgres.Deployments{DB: l.DB}
	for _, change := range []string{"state = 'deleted'", "disconnected_at = clock_timestamp()"} {
		i, _ := l.connectNow(t, foreignServer(uuid.NewString(), uuid.Nil))
		d := newDeployment(i)
		noError(t, store.Create(t.Context(), d, time.Hour))
		must(store.Fetch(t.Context(), d.ID, d.TokenHash))(t)
		l.exec(t, "update instances set "+change+" where id = $1", i.ID)
		if err := store.Ready(t.Context(), d.ID, d.TokenHash); apperr.CodeOf(err) != apperr.NotFound {
			t.Errorf("%s: %v", change, err)
		}
		if got := l.eventsOf(t, i.ID); got != "1 - active" {
			t.Errorf("%s: the events are %q", change, got)
		}
		if seq := testkit.Scalar[int](t, l.conn, "select seq::int from instances where id = $1", i.ID); seq != 1 {
			t.Errorf("%s: the next event would be %d, after a gap", change, seq+1)
		}
	}
}

// TestReadyDuringDisconnect: when both happen concurrently, the agent becomes ready before the instance is
// disconnected, or never.
func TestReadyDuringDisconnect(t *testing.T) {
	t.Parallel()
	l := newTestDB(t)
	store, instances := postgres.Deployments{DB: l.DB}, postgres.Instances{DB: l.DB}
	for range 20 {
		i, _ := l.connectNow(t, foreignServer(uuid.NewString(), uuid.Nil))
		d := newDeployment(i)
		noError(t, store.Create(t.Context(), d, time.Hour))
		must(store.Fetch(t.Context(), d.ID, d.TokenHash))(t)
		var both sync.WaitGroup
		var ready error
		both.Go(func() { ready = store.Ready(t.Context(), d.ID, d.TokenHash) })
		both.Go(func() {
			if done, err := instances.Disconnect(t.Context(), domain.Filter{ProjectID: "p1", ConnectionID: uuid.Nil},
				i.ID); err != nil || !done {
				t.Errorf("disconnected: %t %v", done, err)
			}
		})
		both.Wait()
		want := "cloudfn.instance.state.v1,cloudfn.instance.state.v1"
		if ready == nil {
			want = "cloudfn.instance.state.v1,cloudfn.agent.ready.v1,cloudfn.instance.state.v1"
		} else if apperr.CodeOf(ready) != apperr.NotFound {
			t.Error(ready)
		}
		got := testkit.Scalar[string](t, l.conn, "select string_agg(type, ',' order by seq) from events where subject = $1",
			i.ID.String())
		if got != want {
			t.Errorf("ready was %v, and the events are %s", ready, got)
		}
	}
}
