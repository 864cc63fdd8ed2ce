package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// A cookie has random bytes. The session's id and the key that encrypts the stored session are derived from them.
// Neither reveals the cookie.
const (
	cookieBytes = 32
	keyInfo     = "cloudfn console session 1" // another use of the cookie would be another key
)

func newCookie() domain.Secret {
	var secret [cookieBytes]byte
	_, _ = rand.Read(secret[:]) // never fails (Go 1.24)
	return domain.Secret(base64.RawURLEncoding.EncodeToString(secret[:]))
}

// sessionKey encrypts and decrypts one stored session.
type sessionKey struct {
	id   []byte
	aead cipher.AEAD
}

func keyOf(cookie domain.Secret) (sessionKey, error) {
	secret, err := base64.RawURLEncoding.Strict().DecodeString(cookie.Reveal())
	if err != nil || len(secret) != cookieBytes {
		return sessionKey{}, notSignedIn(nil)
	}
	id := sha256.Sum256(secret)
	derived, err := hkdf.Key(sha256.New, secret, nil, keyInfo, 32)
	if err != nil {
		return sessionKey{}, err
	}
	block, err := aes.NewCipher(derived)
	if err != nil {
		return sessionKey{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return sessionKey{id[:], aead}, err
}

// notSignedIn is the error for every invalid cookie.
func notSignedIn(cause error) error {
	return apperr.Wrap(apperr.Unauthenticated, cause, "nobody is signed in, or not any more: sign in at /console/")
}

// content is the plaintext of a sealed session.
type content struct {
	Token string          `json:"token"`
	Ours  bool            `json:"ours"`
	Who   domain.Identity `json:"who"`
}

func (k sessionKey) seal(s domain.Session) ([]byte, error) {
	plain, err := json.Marshal(content{s.Token.Reveal(), s.Ours, s.Who})
	if err != nil {
		return nil, err
	}
	return k.aead.Seal(nil, nil, plain, k.id), nil //nolint:gosec // it makes a nonce of its own
}

// open fails when the row was changed.
func (k sessionKey) open(sealed []byte) (domain.Session, error) {
	plain, err := k.aead.Open(nil, nil, sealed, k.id)
	if err != nil {
		return domain.Session{}, notSignedIn(err)
	}
	var c content
	if err := json.Unmarshal(plain, &c); err != nil {
		return domain.Session{}, notSignedIn(err)
	}
	return domain.Session{Token: domain.Secret(c.Token), Ours: c.Ours, Who: c.Who}, nil
}
