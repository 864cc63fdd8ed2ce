package connections

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeRequests is a request of u2 to the project p1, in a database that fails at a moment of the test's choice.
type fakeRequests struct {
	*fakeCloud
	request domain.ConnectionRequest
	held    bool
	release error
}

func (f *fakeRequests) Get(context.Context, string, uuid.UUID) (domain.ConnectionRequest, error) {
	return f.request, nil
}

func (f *fakeRequests) ClaimGrant(
	context.Context, string, uuid.UUID, string, []byte, time.Duration,
) (domain.ConnectionRequest, domain.Claim, error) {
	return f.request, domain.Claim{ID: uuid.New(), Acquired: true}, nil
}

func (f *fakeRequests) ReleaseGrant(ctx context.Context, _ string, _ uuid.UUID, _ domain.Claim) (bool, error) {
	f.record("release")
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return f.held, f.release
}

// TestGrantWhenPostgresFails deletes the trust only if no connection was stored. A stored one counts as granted;
// while that is unknown run-connections decides.
func TestGrantWhenPostgresFails(t *testing.T) {
	t.Parallel()
	away := apperr.New(apperr.Unavailable, "away")
	for name, tc := range map[string]struct {
		store, trust, release, missing error
		held                           bool
		want                           apperr.Code
		calls                          []string
	}{
		"granted": {held: true, calls: []string{"announce", "trust", "store"}},
		"no trust": {
			trust: apperr.New(apperr.Conflict, "x"), held: true, want: apperr.Conflict,
			calls: []string{"announce", "trust", "forget", "release"},
		},
		"no answer, not kept": {
			store: away, held: true, want: apperr.Unavailable,
			calls: []string{"announce", "trust", "store", "release", "untrust", "end deleted revoked", "forget", "release"},
		},
		"no answer, kept": {store: away, calls: []string{"announce", "trust", "store", "release"}},
		"withdrawn meanwhile": {
			store: apperr.New(apperr.Conflict, "x"), missing: noSuch, want: apperr.Conflict,
			calls: []string{"announce", "trust", "store", "release", "untrust", "end deleted revoked", "forget", "release"},
		},
		"nothing is known": {
			store: away, release: away, want: apperr.Unavailable,
			calls: []string{"announce", "trust", "store", "release", "release"},
		},
	} {
		f := &fakeCloud{store: tc.store, trust: tc.trust, missing: tc.missing}
		s := f.service()
		s.grants = &fakeRequests{fakeCloud: f, held: tc.held, release: tc.release, request: domain.ConnectionRequest{
			ProjectID: "p1", Requester: domain.Identity{UserID: "u2", ProjectID: "p2"}, Grantee: domain.GranteeUser,
			Status: domain.RequestPending,
			Terms:  domain.Terms{Actions: []domain.Permission{domain.MayStart}, Duration: time.Hour},
		}}
		owner := domain.Identity{UserID: "u1", ProjectID: "p1", WriteRoles: []string{"member"}}
		_, _, err := s.GrantRequest(t.Context(), owner, "", uuid.New(), GrantConnectionRequest{})
		if apperr.CodeOf(err) != tc.want || !slices.Equal(f.calls, tc.calls) {
			t.Errorf("%s: got %v, done was %v, want %v", name, err, f.calls, tc.calls)
		}
	}
}

var noSuch = apperr.New(apperr.NotFound, "absent")

// TestGrantSum differs between grants, and does not depend on the secret.
func TestGrantSum(t *testing.T) {
	t.Parallel()
	one, other, name := domain.Secret("a"), domain.Secret("b"), plainText("x")
	if string(withSecret(&one).sum()) != string(withSecret(&other).sum()) {
		t.Error("the secret is in the sum")
	}
	if string((GrantConnectionRequest{Name: &name}).sum()) == string((GrantConnectionRequest{}).sum()) {
		t.Error("another name has the same sum")
	}
}

func withSecret(secret *domain.Secret) GrantConnectionRequest {
	return GrantConnectionRequest{Delegation: Delegation{Secret: secret}}
}
