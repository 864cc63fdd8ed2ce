package openstack

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestDelegatedLogins request what they mean, send no other token along, and need no catalog besides their answer's: a
// credential with access rules may not request one.
func TestDelegatedLogins(t *testing.T) {
	t.Parallel()
	as := domain.ActsAs{
		UserID: "u1", UserName: "joe", ProjectID: "p1", ProjectName: "web", Roles: []string{"member", "reader"},
	}
	t.Run("trust", func(t *testing.T) {
		t.Parallel()
		s := loginStub(t, member)
		session, err := s.session(t).WithTrust(t.Context(), "t1")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(as, session.ActsAs()); diff != "" || session.UserID() != "u1" {
			t.Error(diff)
		}
		want := map[string]any{"auth": map[string]any{
			"identity": map[string]any{"methods": []any{"token"}, "token": map[string]any{"id": theToken}},
			"scope":    map[string]any{"OS-TRUST:trust": map[string]any{"id": "t1"}},
		}}
		if diff := cmp.Diff(want, bodyOf(t, s.to("/v3/auth/tokens")[0])); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("credential", func(t *testing.T) {
		t.Parallel()
		s := loginStub(t, member+`,"application_credential":{"restricted":false}`)
		s.answer("GET /compute/flavors/detail", 200, `{"flavors":[]}`)
		session, err := s.cloud(t, nil).Credential(t.Context(), "c1", "canary")
		if err != nil {
			t.Fatal(err)
		}
		wide := as
		wide.Unrestricted = true
		if diff := cmp.Diff(wide, session.ActsAs()); diff != "" {
			t.Error(diff)
		}
		if _, err := session.Flavors(t.Context()); err != nil || len(s.to("/v3/auth/catalog")) != 0 {
			t.Errorf("the catalog was read: %v", err)
		}
		login := s.to("/v3/auth/tokens")[0]
		want := map[string]any{"auth": map[string]any{"identity": map[string]any{
			"methods": []any{"application_credential"}, "application_credential": map[string]any{
				"id": "c1", "secret": "canary",
			},
		}}}
		if diff := cmp.Diff(want, bodyOf(t, login)); diff != "" || login.Header.Get("X-Auth-Token") != "" {
			t.Error(diff)
		}
	})
	for status, want := range map[int]apperr.Code{
		401: apperr.Unauthenticated, 403: apperr.Forbidden, 404: apperr.NotFound, 500: apperr.BadGateway,
		503: apperr.Unavailable,
	} {
		s := newStub(t)
		s.answer("POST /v3/auth/tokens", status, fmt.Sprintf(`{"error":{"code":%d,"message":"no"}}`, status))
		if _, err := s.cloud(t, nil).Credential(t.Context(), "c1", "canary"); apperr.CodeOf(err) != want ||
			strings.Contains(err.Error(), "canary") {
			t.Errorf("%d: got %v", status, err)
		}
	}
}

// TestTrustIsNotedBefore: without a note of its end no trust is requested from Keystone, and the note is of the end
// that is requested.
func TestTrustIsNotedBefore(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("POST /v3/OS-TRUST/trusts", 201, `{"trust":{"id":"t1"}}`)
	unavailable := errors.New("postgres is unavailable")
	_, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", []string{"member"}, time.Now(),
		func(time.Time) (bool, error) { return false, unavailable })
	if calls := s.to("/v3/OS-TRUST/trusts"); !errors.Is(err, unavailable) || len(calls) != 0 {
		t.Errorf("got %v, and Keystone %d calls", err, len(calls))
	}
	var noted time.Time
	trust, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", []string{"member"}, time.Now(), func(end time.Time) (bool, error) {
		first := noted.IsZero() // which is taken
		noted = end
		return !first, nil
	})
	if err != nil || !trust.ExpiresAt.Equal(noted) {
		t.Errorf("noted was %s, the trust is %+v: %v", noted, trust, err)
	}
}

// TestFindTrusts by the second of their end, of the right user and project.
func TestFindTrusts(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /v3/OS-TRUST/trusts", 200, `{"trusts":[
		{"id":"t1","trustor_user_id":"u1","project_id":"p1","expires_at":"2026-01-02T03:04:05.000000Z"},
		{"id":"t2","trustor_user_id":"u1","project_id":"p1","expires_at":"2026-01-02T03:04:05.900000Z"},
		{"id":"t3","trustor_user_id":"u3","project_id":"p1","expires_at":"2026-01-02T03:04:05.000000Z"},
		{"id":"t4","trustor_user_id":"u1","project_id":"p4","expires_at":"2026-01-02T03:04:05.000000Z"},
		{"id":"t6","trustor_user_id":"u1","project_id":"p1","expires_at":"2026-01-02T03:04:06.000000Z"},
		{"id":"t5","trustor_user_id":"u1","project_id":"p1","expires_at":null}]}`)
	for second, want := range map[int]string{5: "t1 t2", 6: "t6", 7: ""} {
		end := time.Date(2026, 1, 2, 3, 4, second, 488018000, time.UTC)
		if ids, err := s.session(t).FindTrusts(t.Context(), "u1", "p1", end); strings.Join(ids, " ") != want ||
			err != nil {
			t.Errorf("%s: got %q %v, want %q", end, ids, err, want)
		}
	}
}

// delegator is who gives a trust in these tests.
var delegator = domain.Identity{UserID: "u1", ProjectID: "p1"}

// TestTrustAsItIsAskedFor holds what is sent to Keystone against its API. That Keystone takes it is tested with the
// real one.
func TestTrustAsItIsAskedFor(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("POST /v3/OS-TRUST/trusts", 201, `{"trust":{"id":"t1"}}`)
	after := time.Date(2026, 1, 2, 4, 4, 5, 6000, time.FixedZone("", 3600))
	trust, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", []string{"member", "x"}, after, unannounced)
	if late := trust.ExpiresAt.Sub(after); trust.ID != "t1" || err != nil || late < 0 || late > 10*time.Minute {
		t.Errorf("got %+v %v", trust, err)
	}
	want := map[string]any{"trust": map[string]any{
		"trustor_user_id": "u1", "trustee_user_id": "u2", "project_id": "p1", "impersonation": true,
		"allow_redelegation": false,
		"expires_at":         trust.ExpiresAt.Format("2006-01-02T15:04:05.000000Z"), "roles": []any{
			map[string]any{"name": "member"}, map[string]any{"name": "x"},
		},
	}}
	if diff := cmp.Diff(want, bodyOf(t, s.to("/v3/OS-TRUST/trusts")[0])); diff != "" {
		t.Error(diff)
	}
}

// TestTrustWhoseEndIsTaken: each attempt requests another end, from more and more time, and there is a last one.
func TestTrustWhoseEndIsTaken(t *testing.T) {
	t.Parallel()
	for taken, want := range map[int]apperr.Code{1: "", 5: "", 6: apperr.Conflict} {
		s := newStub(t)
		ends := map[any]bool{}
		s.mux.HandleFunc("POST /v3/OS-TRUST/trusts", func(w http.ResponseWriter, _ *http.Request) {
			calls := s.to("/v3/OS-TRUST/trusts")
			trust, _ := bodyOf(t, calls[len(calls)-1])["trust"].(map[string]any)
			if ends[trust["expires_at"]] = true; len(ends) <= taken {
				w.WriteHeader(http.StatusConflict)
				_,
					_ = w.Write(
					[]byte(
						`{"error":{"code":409,"message":"Conflict occurred attempting to store trust - Duplicate entry found with ID x."}}`,
					),
				)
				return
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(`{"trust":{"id":"t1"}}`))
		})
		after := time.Date(2026, 1, 2, 4, 4, 5, 0, time.UTC)
		trust, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", []string{"member"}, after, unannounced)
		if apperr.CodeOf(err) != want || err == nil && (trust.ID != "t1" ||
			!ends[trust.ExpiresAt.Format("2006-01-02T15:04:05.000000Z")]) {
			t.Errorf("%d ends are taken: %+v %v", taken, trust, err)
		}
		if err != nil && (!strings.Contains(apperr.As(err).Message, "expires_at") || len(ends) != 6) {
			t.Errorf("after %d attempts: %v", len(ends), err)
		}
	}
}

// TestTrustsThatKeystoneRefuses: a caller with a delegated token learns what to do instead. The words are those
// of several releases of Keystone; the sandbox's lets an application credential make a trust.
func TestTrustsThatKeystoneRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		words  string
		want   apperr.Code
	}{
		{
			403, "You are not authorized to perform the requested action: Delegated tokens cannot manage trusts.",
			apperr.Conflict,
		},
		{
			403,
			"You are not authorized to perform the requested action: Using method 'application_credential' is not " +
				"allowed for managing trusts. Application Credential", apperr.Conflict,
		},
		{
			403,
			"You are not authorized to perform the requested action: Remaining redelegation depth of 0 out of " +
				"allowed range of [0..3].", apperr.Conflict,
		},
		{403, "You are not authorized to perform the requested action: identity:create_trust.", apperr.Forbidden},
		{404, "Could not find user: u2.", apperr.NotFound},
		{400, "Invalid input", apperr.Invalid},
		{503, "", apperr.Unavailable},
	} {
		s := newStub(t)
		s.answer("POST /v3/OS-TRUST/trusts", tc.status, `{"error":{"message":"`+tc.words+`"}}`)
		_, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", []string{"member"}, time.Now(), unannounced)
		if apperr.CodeOf(err) != tc.want {
			t.Errorf("%d %s: got %v", tc.status, tc.words, err)
		}
		if way := "kind application_credential"; tc.want == apperr.Conflict &&
			!strings.Contains(apperr.As(err).Message, way) {
			t.Errorf("the way out is not said: %v", err)
		}
	}
	s := newStub(t)
	s.answer("POST /v3/OS-TRUST/trusts", 201, `{"trust":{}}`)
	if _, err := s.session(t).CreateTrust(t.Context(), delegator, "u2", nil, time.Now(),
		unannounced); apperr.CodeOf(err) != apperr.BadGateway {
		t.Errorf("a trust without an id: %v", err)
	}
}

func TestTrustIsTakenBack(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]apperr.Code{
		204: "", 404: "", 403: apperr.Forbidden, 401: apperr.Unauthenticated, 503: apperr.Unavailable,
	} {
		s := newStub(t)
		s.answer("DELETE /v3/OS-TRUST/trusts/t1", status, fmt.Sprintf(`{"error":{"code":%d}}`, status))
		if err := s.session(t).DeleteTrust(t.Context(), "t1"); apperr.CodeOf(err) != want {
			t.Errorf("%d: got %v", status, err)
		}
	}
}

// TestTrustThatSeemsGone: only Keystone's own 404 reports that a trust is deleted; that of a proxy says nothing.
func TestTrustThatSeemsGone(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]apperr.Code{
		`{"error":{"code":404,"message":"x"}}`: apperr.NotFound, `<h1>404</h1>`: apperr.Unavailable,
		``: apperr.Unavailable,
	} {
		s := newStub(t)
		s.answer("GET /v3/OS-TRUST/trusts/t1", 404, body)
		s.answer("DELETE /v3/OS-TRUST/trusts/t1", 404, body)
		if err := s.session(t).CheckTrust(t.Context(), "t1"); apperr.CodeOf(err) != want {
			t.Errorf("%q: got %v", body, err)
		}
		if err := s.session(t).DeleteTrust(t.Context(), "t1"); (err == nil) != (want == apperr.NotFound) {
			t.Errorf("%q: the deletion: %v", body, err)
		}
	}
}

// TestCredentialEnd is read where Keystone shows it.
func TestCredentialEnd(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 11, 22, 7, 17, 56, 0, time.UTC)
	for name, tc := range map[string]struct {
		status int
		body   string
		want   time.Time
		code   apperr.Code
	}{
		"an end":  {200, `{"application_credential":{"id":"c1","expires_at":"2026-11-22T07:17:56"}}`, end, ""},
		"no end":  {200, `{"application_credential":{"id":"c1","expires_at":null}}`, time.Time{}, ""},
		"refused": {403, `{"error":{"code":403}}`, time.Time{}, apperr.Forbidden},
	} {
		s := loginStub(t, member)
		s.answer("GET /v3/users/u1/application_credentials/c1", tc.status, tc.body)
		session, err := s.cloud(t, nil).Credential(t.Context(), "c1", "s")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := session.CredentialEnd(t.Context(), "c1"); apperr.CodeOf(err) != tc.code || !got.Equal(tc.want) {
			t.Errorf("%s: got %s %v", name, got, err)
		}
	}
}

func unannounced(time.Time) (bool, error) { return true, nil }
