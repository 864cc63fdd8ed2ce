package servers

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// failingStore fails with an error: its caller has hung up, or Postgres did. It may have stored the action all the same.
type failingStore struct {
	actionStore
	connectionStore
	err     error
	dropped int
}

func (f *failingStore) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func (f *failingStore) Create(context.Context, domain.DelegatedAction) (domain.DelegatedAction, error) {
	return domain.DelegatedAction{}, f.err
}

// deployments are stored without fail.
type deployments struct{ *failingStore }

func (deployments) Create(context.Context, domain.Deployment, time.Duration) error { return nil }

func (f deployments) Drop(context.Context, string, uuid.UUID) error {
	f.dropped++
	return nil
}

// TestADeploymentThatMayBeAskedFor is kept: else a server would be rebuilt for an agent that nothing is there for.
func TestADeploymentThatMayBeAskedFor(t *testing.T) {
	t.Parallel()
	key, err := seal.ParsePublicKey(testkit.ConnectionPublicKey)
	if err != nil {
		t.Fatal(err)
	}
	for code, want := range map[apperr.Code]int{apperr.ClientGone: 0, apperr.Unavailable: 0, apperr.Conflict: 1} {
		f := &failingStore{err: apperr.New(code, "no")}
		s := service{actions: f, connections: f, agents: agents{config: agent.Config{URL: "http://agents.example.com"}, deployments: deployments{f}, seal: key}}
		_, err := s.enqueueDeploy(t.Context(), domain.DelegatedAction{ID: uuid.New()}, deploy{Spec: agent.Spec{Image: "registry.example.com/agent:1"}})
		if apperr.CodeOf(err) != code || f.dropped != want {
			t.Errorf("%s: %v, and %d deployments were dropped", code, err, f.dropped)
		}
	}
}
