package pollinstances

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestLostClaim: an event notices that another replica has claimed a list that it reads. A list that it has released
// does not count.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	s, _, conn := attending(t, nil)
	e := &event{service: s, claim: domain.NewClaim()}
	_, err := conn.Exec(t.Context(),
		"insert into polls (project_id, since, full_at) values ('p', now(), now()), ('q', now(), now())")
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := s.polls.ClaimDue(t.Context(), e.claim, claimFor, time.Now().Add(time.Hour), shardSize)
	if err != nil || len(claimed) != 2 {
		t.Fatalf("claimed %+v, %v", claimed, err)
	}
	e.held.add(claimed...)
	if err := e.renew(t.Context()); err != nil {
		t.Error(err)
	}
	if err := e.release(t.Context(), "q"); err != nil {
		t.Error(err)
	}
	if err := e.renew(t.Context()); err != nil {
		t.Errorf("with a released list: %v", err)
	}
	_, err = conn.Exec(t.Context(), "update polls set claim_id = gen_random_uuid() where project_id = 'p'")
	if lost := e.renew(t.Context()); err != nil || !errors.Is(lost, domain.ErrFenced) {
		t.Errorf("with a lost list: %v %v", err, lost)
	}
}

// TestLostClaimEndsWork: what an event does ends when another replica has claimed it, and before its claim does when
// Postgres does not answer.
func TestLostClaimEndsWork(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		renew func(context.Context) error
		took  time.Duration
	}{
		"another replica": {func(context.Context) error { return domain.ErrFenced }, claimFor / 4},
		"no Postgres": {func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}, claimFor * 3 / 4},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_ = whileClaimed(t.Context(), domain.NewClaim(), tc.renew, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			if time.Since(began) != tc.took {
				t.Errorf("%s: it ended after %s, want %s", name, time.Since(began), tc.took)
			}
		})
	}
}
