package connections

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// fakeCloud stands for another cloud that has several regions, and for a Keystone and a database that fail at a moment of the
// test's choice: the sandbox has one region and cannot be made to fail for one call. Only what is asked of it is tested here.
type fakeCloud struct {
	naming

	flavors, login, trust, untrust, store, hidden error

	end   time.Time // of the application credential
	calls []string
}

func (f *fakeCloud) note(call string) { f.calls = append(f.calls, call) }

func (f *fakeCloud) As(domain.Secret, string) session { return f }

func (f *fakeCloud) Region() string { return "" }

func (f *fakeCloud) Home(authURL, _ string) (sameCloud, sameRegion bool) { return authURL == "", true }

func (f *fakeCloud) Credential(context.Context, string, string, string, domain.Secret) (session, domain.ActsAs, error) {
	return f, domain.ActsAs{ProjectID: "p1"}, f.login
}

func (f *fakeCloud) Flavors(context.Context) ([]domain.Flavor, error) { return nil, f.flavors }

func (f *fakeCloud) CreateTrust(context.Context, domain.Identity, string, []string, time.Time) (domain.Trust, error) {
	f.note("trust")
	return domain.Trust{ID: "t1"}, f.trust
}

func (f *fakeCloud) CredentialEnd(context.Context, string) (time.Time, error) { return f.end, f.hidden }

func (f *fakeCloud) DeleteTrust(ctx context.Context, _ string) error {
	f.note("untrust")
	return errors.Join(f.untrust, ctx.Err())
}

func (f *fakeCloud) Now(context.Context) (time.Time, error) { return time.Now(), nil }

func (f *fakeCloud) Create(_ context.Context, c domain.Connection) (domain.Connection, error) {
	f.note("store")
	return c, f.store
}

func (f *fakeCloud) Get(context.Context, domain.Identity, uuid.UUID) (domain.Connection, error) {
	return domain.Connection{}, nil
}

func (f *fakeCloud) List(context.Context, domain.Identity, domain.ConnectionQuery) ([]domain.Connection, error) {
	return nil, nil
}

func (f *fakeCloud) End(ctx context.Context, _ string, _ uuid.UUID, status domain.ConnectionStatus, _ string, revoked bool) (bool, error) {
	f.note("end " + string(status) + map[bool]string{true: " revoked"}[revoked])
	return false, ctx.Err()
}

func (f *fakeCloud) MarkRevoked(context.Context, domain.Connection) error { return nil }

func (f *fakeCloud) RequestCheck(context.Context, string, uuid.UUID) (time.Time, error) {
	return time.Now(), nil
}

func (f *fakeCloud) FailedCheck(context.Context, string, uuid.UUID) (time.Time, string, error) {
	return time.Time{}, "", nil
}

func (f *fakeCloud) Seal(string, domain.Secret) ([]byte, error) { return []byte("sealed"), nil }

func (f *fakeCloud) service() service {
	return service{store: f, cloud: f, key: f, trustee: "u2", clouds: []string{"https://there.example/v3"}, wake: func(...string) {}}
}

// asked is a connection of a kind as it is asked for.
func asked(kind domain.ConnectionKind, authURL string) wish {
	return wish{Connection: domain.Connection{ProjectID: "p1", Kind: kind, AuthURL: authURL, ExpiresAt: time.Now().Add(time.Hour)}, roles: []string{"member"}}
}

// TestWhoseMistake: what is wrong with a credential is said as the caller's mistake, and never as if it were about his token; what
// is wrong with a cloud keeps its code.
func TestWhoseMistake(t *testing.T) {
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
		_, err := f.service().Create(t.Context(), domain.Identity{ProjectID: "p1"}, "", asked(domain.CredentialConnection, tc.url))
		e := apperr.As(err)
		if e.Code != tc.want || tc.field != "" && e.Fields[0].Field != tc.field || len(f.calls) != 0 {
			t.Errorf("%+v: got %v, and %v was done", tc, err, f.calls)
		}
	}
}

// TestTrustThatIsNotKept is taken back, also when the caller has hung up, and a row that is there all the same ends. Of a trust
// that could not be made nothing is stored.
func TestTrustThatIsNotKept(t *testing.T) {
	t.Parallel()
	away := apperr.New(apperr.Unavailable, "away")
	for name, tc := range map[string]struct {
		cloud fakeCloud
		want  []string
	}{
		"no flavors":              {fakeCloud{flavors: away}, nil},
		"no trust":                {fakeCloud{trust: away}, []string{"trust"}},
		"no row":                  {fakeCloud{store: away}, []string{"trust", "store", "untrust", "end deleted revoked"}},
		"no row, and no Keystone": {fakeCloud{store: away, untrust: away}, []string{"trust", "store", "untrust", "end deleted"}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := tc.cloud.service().Create(ctx, domain.Identity{UserID: "u1", ProjectID: "p1"}, "", asked(domain.TrustConnection, ""))
		if apperr.CodeOf(err) != apperr.Unavailable || len(tc.cloud.calls) != len(tc.want) {
			t.Errorf("%s: got %v, done was %v", name, err, tc.cloud.calls)
			continue
		}
		for n := range tc.want {
			if tc.cloud.calls[n] != tc.want[n] {
				t.Errorf("%s: done was %v, want %v", name, tc.cloud.calls, tc.want)
			}
		}
	}
}

// TestOtherIDs: where the caller's own ids are not of the form that Keystone gives them, nor need others be.
func TestOtherIDs(t *testing.T) {
	t.Parallel()
	hex := "5d4b2c1fbb7a4a6c8f0f3f1f0a9d7c55"
	for _, tc := range []struct {
		user, project, id string
		taken             bool
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
		w := wish{Connection: domain.Connection{UserID: tc.user, ProjectID: tc.project}}
		if err := (creation{UsableBy: []usableEntry{{id: tc.id}}}).users(&w); (err == nil) != tc.taken {
			t.Errorf("%s of %s names %q: %v", tc.user, tc.project, tc.id, err)
		}
	}
}

// TestCredentialWhoseEndIsHidden by the operator's policy is taken as it is. While Keystone is away nothing is.
func TestCredentialWhoseEndIsHidden(t *testing.T) {
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
		"away":            {fakeCloud{hidden: apperr.New(apperr.Unavailable, "x")}, apperr.Unavailable},
	} {
		_, err := tc.cloud.service().Create(t.Context(), domain.Identity{ProjectID: "p1"}, "", asked(domain.CredentialConnection, ""))
		if apperr.CodeOf(err) != tc.want || (err == nil) != (len(tc.cloud.calls) == 1) {
			t.Errorf("%s: got %v, and %v was done", name, err, tc.cloud.calls)
		}
	}
}
