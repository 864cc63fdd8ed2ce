package domain

import (
	"log/slog"
	"slices"
)

const redacted = "[redacted]"

// Secret is a string that prints, logs and marshals as "[redacted]".
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String keeps the secret out of formatted text.
func (Secret) String() string { return redacted }

// GoString keeps the secret out of %#v.
func (Secret) GoString() string { return redacted }

// LogValue keeps the secret out of logs.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText keeps the secret out of JSON and of everything else that marshals text.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// UnmarshalText reads a secret from JSON.
func (s *Secret) UnmarshalText(text []byte) error { *s = Secret(text); return nil }

// KeyUse is how many stored secrets are encrypted with a key.
type KeyUse struct {
	Key     string // its id
	Secrets int64
}

// SecretsWithoutKey returns how many secrets are encrypted with other keys than those held.
func SecretsWithoutKey(uses []KeyUse, held []string) (n int64) {
	for _, use := range uses {
		if !slices.Contains(held, use.Key) {
			n += use.Secrets
		}
	}
	return n
}
