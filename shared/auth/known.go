package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"net/http"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// accepted is what Keystone said of a token when it accepted it.
type accepted struct {
	who domain.Identity
	at  time.Time
}

// Known returns whose token a request has, if Keystone accepted it and has not refused it since: not only for
// tokenTTL. It decides nothing but which rate limit a request counts for.
func (a *Authenticator) Known(h http.Header) (domain.Identity, bool) {
	token, err := tokenOf(h)
	if err != nil {
		return domain.Identity{}, false
	}
	found, ok := a.accepted.Get(a.keyOf(token))
	if !ok || !a.now().Before(found.who.ExpiresAt) {
		return domain.Identity{}, false
	}
	return found.who, true
}

// keyOf is the token's key in the caches.
func (a *Authenticator) keyOf(token domain.Secret) [32]byte {
	mac := hmac.New(sha256.New, a.key[:])
	mac.Write([]byte(token.Reveal()))
	return [32]byte(mac.Sum(nil))
}
