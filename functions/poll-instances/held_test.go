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

// TestLostClaimEndsWork within the time between two renewals.
func TestLostClaimEndsWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := whileClaimed(t.Context(), func(context.Context) error { return domain.ErrFenced },
			func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
		if err != nil || time.Since(began) != renewEvery {
			t.Errorf("it ended after %s: %v", time.Since(began), err)
		}
	})
}
