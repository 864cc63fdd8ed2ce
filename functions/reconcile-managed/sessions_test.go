package reconcilemanaged

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/managed"
)

// starting is a fake account of a Keystone that refuses valid trusts for a moment, which the real one cannot be made
// to show.
type starting struct{ refusals int }

func (a *starting) WithTrust(context.Context, string) (cloud, error) {
	if a.refusals > 0 {
		a.refusals--
		return nil, apperr.New(apperr.Unauthenticated, "refused")
	}
	return everywhere{}, nil
}

func (a *starting) CheckTrust(context.Context, string) error { return nil }

type everywhere struct{}

func (everywhere) In(string) managed.Cloud { return nil }

// TestTrustThatIsRefusedForAMoment: a trust is lost when Keystone refuses it before a pause and after it, with a new
// login of the account each time.
func TestTrustThatIsRefusedForAMoment(t *testing.T) {
	t.Parallel()
	for refusals, want := range map[int]apperr.Code{0: "", 1: "", 2: "", 3: "", 4: apperr.DelegationLost} {
		own, logins := &starting{refusals: refusals}, 0
		trusts := newSessions(func(context.Context) (account, error) {
			logins++
			return own, nil
		})
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_, err := trusts.Open(t.Context(), domain.Connection{ID: uuid.New(), DelegationID: "t"}, "")
			if got := apperr.CodeOf(err); got != want {
				t.Errorf("%d refusals: got %q, want %q", refusals, got, want)
			}
			pauses := map[bool]time.Duration{true: trusts.pause}
			if waited := time.Since(began); waited != pauses[refusals > 1] {
				t.Errorf("%d refusals: it waited for %s", refusals, waited)
			}
			if logins == 0 {
				t.Errorf("%d refusals: nobody logged in", refusals)
			}
		})
	}
}
