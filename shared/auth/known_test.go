package auth

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestKnown: a token is known until it expires or Keystone refuses it, also when it has to be validated once more: a
// flood from its address must not stop its requests after tokenTTL.
func TestKnown(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{0, time.Minute} {
		bubble(t, ttl, func(t *testing.T, a *Authenticator, k *keystone) {
			known := func(token string, want bool, when string) {
				t.Helper()
				who, found := a.Known(http.Header{"X-Auth-Token": {token}})
				if found != want || want != (who.ProjectID == "p") {
					t.Errorf("%s %s: got %+v, %t", token, when, who, found)
				}
			}
			known("t", false, "at first")
			if err := a.try(t.Context(), "t"); err != nil {
				t.Fatal(err)
			}
			known("t", true, "when it was accepted")
			known("other", false, "in the beginning")
			time.Sleep(10 * time.Minute)
			known("t", true, "when it has to be validated once more")
			good := k.answer
			k.answer = func(context.Context, string) (domain.Identity, error) {
				return domain.Identity{}, apperr.New(apperr.Unavailable, "away")
			}
			_ = a.try(t.Context(), "t")
			known("t", true, "during an outage of Keystone")
			k.answer = func(context.Context, string) (domain.Identity, error) {
				return domain.Identity{}, apperr.New(apperr.Unauthenticated, "revoked")
			}
			_ = a.try(t.Context(), "t")
			known("t", false, "when it was revoked")
			k.answer = good
			if err := a.try(t.Context(), "other"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			known("other", false, "when it has expired")
		})
	}
}
