package domain

import "slices"

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
