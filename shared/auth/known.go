package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"net/http"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Known reports whether the token of a request is cached as accepted: Keystone is not called for it.
func (a *Authenticator) Known(h http.Header) bool {
	token, err := tokenOf(h)
	if err != nil {
		return false
	}
	_, known := a.remembered(a.keyOf(token))
	return known
}

// keyOf is the token's key in the caches.
func (a *Authenticator) keyOf(token domain.Secret) [32]byte {
	mac := hmac.New(sha256.New, a.key[:])
	mac.Write([]byte(token.Reveal()))
	return [32]byte(mac.Sum(nil))
}
