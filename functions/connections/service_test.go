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

// TestCredentialErrors reports bad credentials as faults of the request, never of the caller's token, and keeps the
// codes of a failing cloud.
func TestCredentialErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		url            string
		login, flavors apperr.Code
		want           apperr.Code
		field          string
	}{
		{"", apperr.Unauthenticated, "", apperr.Invalid, "id"},
		{"", apperr.NotFound, "", apperr.Invalid, "id"},
		{"", apperr.Forbidden, "", apperr.Invalid, "id"},
		{"", apperr.Unavailable, "", apperr.Unavailable, ""},
		{"", apperr.Timeout, "", apperr.Timeout, ""},
		{"", apperr.RateLimited, "", apperr.RateLimited, ""},
		{"", "", apperr.Unauthenticated, apperr.Invalid, "id"},
		{"", "", apperr.Forbidden, apperr.Invalid, "id"},
		{"", "", apperr.Unavailable, apperr.Unavailable, ""},
		{"", "", apperr.Internal, apperr.Internal, ""},
		{"https://there.example", "", apperr.Internal, apperr.Invalid, "region"}, // it has several
	} {
		f := &fakeCloud{}
		if tc.login != "" {
			f.login = apperr.New(tc.login, "x")
		}
		if tc.flavors != "" {
			f.flavors = apperr.New(tc.flavors, "x")
		}
		_, err := f.service().Create(t.Context(), domain.Identity{ProjectID: "p1"}, "",
			draftOf(domain.CredentialConnection, tc.url))
		e := apperr.As(err)
		if e.Code != tc.want || tc.field != "" && e.Fields[0].Field != tc.field || len(f.calls) != 0 {
			t.Errorf("%+v: got %v, and %v was done", tc, err, f.calls)
		}
	}
}

// TestCreateWhenPostgresFails revokes the trust, also when the caller has hung up, and ends the row in case it was
// stored.
func TestCreateWhenPostgresFails(t *testing.T) {
	t.Parallel()
	down, full := apperr.New(apperr.Unavailable, "unavailable"), apperr.New(apperr.Conflict, "full")
	for name, tc := range map[string]struct {
		cloud fakeCloud
		want  []string
	}{
		"no flavors":        {fakeCloud{flavors: down}, nil},
		"not announced":     {fakeCloud{announce: down}, []string{"announce"}},
		"no trust, perhaps": {fakeCloud{trust: down}, []string{"announce", "trust"}}, // run-connections looks
		"no row, and no Keystone": {fakeCloud{store: full, untrust: down}, []string{
			"announce", "trust", "store", "untrust",
			"end deleted", "drop t1",
		}},
		"no row": {fakeCloud{store: full}, []string{
			"announce", "trust", "store", "untrust",
			"end deleted revoked", "forget",
		}},
		"no answer, and no row": {fakeCloud{store: down, missing: noSuch}, []string{
			"announce", "trust", "store", "drop t1",
		}},
		"no answer, and perhaps a row": {fakeCloud{store: down, missing: down}, []string{"announce", "trust", "store"}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := tc.cloud.service().Create(ctx, domain.Identity{UserID: "u1", ProjectID: "p1"}, "",
			draftOf(domain.TrustConnection, ""))
		want := down
		if tc.cloud.store != nil {
			want = apperr.As(tc.cloud.store)
		}
		if apperr.CodeOf(err) != want.Code || !slices.Equal(tc.cloud.calls, tc.want) {
			t.Errorf("%s: got %v, done was %v, want %v", name, err, tc.cloud.calls, tc.want)
		}
	}
}

// TestCreateWithLostAnswer: a connection that Postgres has stored is the answer, and keeps its trust. The same request
// is never answered with one that was deleted since.
func TestCreateWithLostAnswer(t *testing.T) {
	t.Parallel()
	id := uuid.Must(uuid.NewV7())
	for name, tc := range map[string]struct {
		status  domain.ConnectionStatus
		resumed bool
		want    apperr.Code
		calls   []string
	}{
		"stored":               {domain.ConnectionActive, false, "", []string{"announce", "trust", "store"}},
		"stored, and repeated": {domain.ConnectionActive, true, "", nil},
		"deleted since":        {domain.ConnectionDeleted, true, apperr.Conflict, nil},
	} {
		f := &fakeCloud{
			store: apperr.New(apperr.Unavailable, "unavailable"), stored: domain.Connection{ID: id, Status: tc.status},
		}
		ctx := domain.WithAttempt(t.Context(), domain.KeyedRequest{ID: id, Resumed: tc.resumed})
		c, err := f.service().Create(ctx, domain.Identity{UserID: "u1", ProjectID: "p1"}, "",
			draftOf(domain.TrustConnection, ""))
		if apperr.CodeOf(err) != tc.want || c.ID != id || !slices.Equal(f.calls, tc.calls) {
			t.Errorf("%s: got %+v, %v, done was %v, want %v", name, c, err, f.calls, tc.calls)
		}
	}
}

// TestRejectedTrustIsForgotten deletes the announcement.
func TestRejectedTrustIsForgotten(t *testing.T) {
	t.Parallel()
	f := &fakeCloud{trust: apperr.New(apperr.Conflict, "x")}
	_, err := f.service().Create(t.Context(), domain.Identity{UserID: "u1", ProjectID: "p1"}, "",
		draftOf(domain.TrustConnection, ""))
	if want := []string{"announce", "trust", "forget"}; apperr.CodeOf(err) != apperr.Conflict ||
		!slices.Equal(f.calls, want) {
		t.Errorf("got %v, done was %v, want %v", err, f.calls, want)
	}
}

// TestIsKeystoneID accepts other forms of ids where the caller's own ids have another form.
func TestIsKeystoneID(t *testing.T) {
	t.Parallel()
	hex := "5d4b2c1fbb7a4a6c8f0f3f1f0a9d7c55"
	for _, tc := range []struct {
		user, project, id string
		valid             bool
	}{
		{hex, hex, hex, true},
		{hex, hex, hex + hex, true},
		{hex, hex, "alt", false},
		{hex, hex, hex[1:], false},
		{hex, hex, "", false},
		{"jdoe", hex, "alt", true},
		{hex, "123456", "654321", true},
		{"jdoe", hex, hex, true},
		{"jdoe", hex, "a b", false},
	} {
		if valid := isKeystoneID(domain.Identity{UserID: tc.user, ProjectID: tc.project}, tc.id); valid != tc.valid {
			t.Errorf("%q for %s of %s: got %v", tc.id, tc.user, tc.project, valid)
		}
	}
}

// TestCredentialWithHiddenEnd is accepted when the operator's policy hides its end, and rejected while Keystone is
// down.
func TestCredentialWithHiddenEnd(t *testing.T) {
	t.Parallel()
	later, sooner := time.Now().Add(2*time.Hour), time.Now().Add(time.Minute)
	for name, tc := range map[string]struct {
		cloud fakeCloud
		want  apperr.Code
	}{
		"it does not end": {fakeCloud{}, ""},
		"later":           {fakeCloud{end: later}, ""},
		"sooner":          {fakeCloud{end: sooner}, apperr.Invalid},
		"forbidden":       {fakeCloud{end: sooner, hidden: apperr.New(apperr.Forbidden, "x")}, ""},
		"absent":          {fakeCloud{hidden: apperr.New(apperr.NotFound, "x")}, ""},
		"unavailable":     {fakeCloud{hidden: apperr.New(apperr.Unavailable, "x")}, apperr.Unavailable},
	} {
		_, err := tc.cloud.service().Create(t.Context(), domain.Identity{ProjectID: "p1"}, "",
			draftOf(domain.CredentialConnection, ""))
		if apperr.CodeOf(err) != tc.want || (err == nil) != (len(tc.cloud.calls) == 1) {
			t.Errorf("%s: got %v, and %v was done", name, err, tc.cloud.calls)
		}
	}
}

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
	down := apperr.New(apperr.Unavailable, "unavailable")
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
			store: down, held: true, want: apperr.Unavailable,
			calls: []string{"announce", "trust", "store", "release", "untrust", "end deleted revoked", "forget", "release"},
		},
		"no answer, kept": {store: down, calls: []string{"announce", "trust", "store", "release"}},
		"withdrawn meanwhile": {
			store: apperr.New(apperr.Conflict, "x"), missing: noSuch, want: apperr.Conflict,
			calls: []string{"announce", "trust", "store", "release", "untrust", "end deleted revoked", "forget", "release"},
		},
		"nothing is known": {
			store: down, release: down, want: apperr.Unavailable,
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

// TestGrantHash differs between grants, and does not depend on the secret, nor on a default that is given.
func TestGrantHash(t *testing.T) {
	t.Parallel()
	one, other, name := domain.Secret("a"), domain.Secret("b"), plainText("x")
	if string(withSecret(&one).hash()) != string(withSecret(&other).hash()) {
		t.Error("the secret is in the hash")
	}
	none := string((GrantConnectionRequest{}).hash())
	if string((GrantConnectionRequest{Name: &name}).hash()) == none {
		t.Error("another name has the same hash")
	}
	if string((GrantConnectionRequest{Kind: domain.TrustConnection}).hash()) != none {
		t.Error("the default kind has another hash when it is given")
	}
}

func withSecret(secret *domain.Secret) GrantConnectionRequest {
	return GrantConnectionRequest{Delegation: Delegation{Secret: secret}}
}
