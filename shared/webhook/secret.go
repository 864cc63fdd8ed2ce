package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// How a secret is written (https://www.standardwebhooks.com): a prefix, and 24 to 64 bytes in base64.
const (
	secretPrefix  = "whsec_"
	newSecretSize = 32
	minSecretSize = 24
	maxSecretSize = 64
)

// NewSecret makes a secret.
func NewSecret() domain.Secret {
	key := make([]byte, newSecretSize)
	_, _ = rand.Read(key) // never fails (Go 1.24)
	return domain.Secret(secretPrefix + base64.StdEncoding.EncodeToString(key))
}

// CheckSecret fails on a malformed secret. The error is for the field "secret", and does not quote it.
func CheckSecret(secret domain.Secret) error {
	_, err := keyOf(secret)
	return err
}

func keyOf(secret domain.Secret) ([]byte, error) {
	text, ok := strings.CutPrefix(secret.Reveal(), secretPrefix)
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	if !ok || err != nil || strings.ContainsAny(text, "\r\n") || len(key) < minSecretSize || len(key) > maxSecretSize {
		return nil, apperr.InvalidField("secret", fmt.Sprintf("must be %s and then %d to %d bytes in base64",
			secretPrefix,
			minSecretSize, maxSecretSize))
	}
	return key, nil
}

// sign gives one signature for each secret, separated by spaces.
func sign(secrets []domain.Secret, id string, at time.Time, body []byte) (string, error) {
	if len(secrets) == 0 {
		return "", apperr.New(apperr.Internal, "the event cannot be signed: its callback has no secret")
	}
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		key, err := keyOf(secret)
		if err != nil {
			return "", apperr.New(apperr.Internal, "the event cannot be signed: a secret of its callback is malformed")
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " "), nil
}
