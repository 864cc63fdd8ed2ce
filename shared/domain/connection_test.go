package domain_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestConnectionSecretIsForOneCloud: sealed for one, it opens for no other, whatever the row says later.
func TestConnectionSecretIsForOneCloud(t *testing.T) {
	t.Parallel()
	here := domain.Connection{ID: uuid.New(), ProjectID: "p1"}
	there, other := here, here
	there.AuthURL, other.ID = "https://elsewhere.example/v3", uuid.New()
	if here.SealedFor() == there.SealedFor() || here.SealedFor() == other.SealedFor() {
		t.Errorf("%q, %q and %q are not three purposes", here.SealedFor(), there.SealedFor(), other.SealedFor())
	}
}

// TestConnectionUsable by whoever delegated, unless with a token that only reads.
func TestConnectionUsable(t *testing.T) {
	t.Parallel()
	c := domain.Connection{UserID: "u1", ProjectID: "p1"}
	for want, roles := range map[bool][]string{true: {"member"}, false: nil} {
		if got := c.Usable(domain.Identity{UserID: "u1", ProjectID: "p1", WriteRoles: roles}); got != want {
			t.Errorf("with the roles %v: %t", roles, got)
		}
	}
}
