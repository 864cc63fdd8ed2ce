package openstack

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// loginStub answers every login with the token's body.
func loginStub(t *testing.T, body string) *stub {
	t.Helper()
	s := newStub(t)
	s.mux.HandleFunc("POST /v3/auth/tokens", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Subject-Token", theToken)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"token":{` + body + `,` + strings.TrimPrefix(s.catalog("compute"), "{") + `}`))
	})
	return s
}

const member = `"user":{"id":"u1","name":"joe"},"project":{"id":"p1","name":"web","domain":{"id":"d1"}},"roles":[{"name":"reader"},{"name":"member"}]`

// TestDelegatedLogins ask for what they mean, send no other token along, and need no catalog besides their answer's: a
// credential with access rules may not ask for one.
func TestDelegatedLogins(t *testing.T) {
	t.Parallel()
	as := domain.ActsAs{
		UserID: "u1", UserName: "joe", ProjectID: "p1", ProjectName: "web", Roles: []string{"member", "reader"},
	}
	t.Run("trust", func(t *testing.T) {
		t.Parallel()
		s := loginStub(t, member)
		session, got, err := s.session(t).Trust(t.Context(), "t1")
		if diff := cmp.Diff(as, got); err != nil || diff != "" || session.UserID() != "u1" {
			t.Errorf("%v %s", err, diff)
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
		session, got, err := s.cloud(t, nil).Credential(t.Context(), "c1", "canary")
		wide := as
		wide.Unrestricted = true
		if diff := cmp.Diff(wide, got); err != nil || diff != "" {
			t.Fatalf("%v %s", err, diff)
		}
		if _, err := session.Flavors(t.Context()); err != nil || len(s.to("/v3/auth/catalog")) != 0 {
			t.Errorf("the catalog was asked for: %v", err)
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
		if _, as, err := s.cloud(t, nil).Credential(t.Context(), "c1", "canary"); apperr.CodeOf(err) != want ||
			as.UserID != "" || strings.Contains(err.Error(), "canary") {
			t.Errorf("%d: got %v %v", status, as, err)
		}
	}
}

// TestAnotherCloud is asked at its own Keystone, and chooses from its own catalog.
func TestAnotherCloud(t *testing.T) {
	t.Parallel()
	ours, theirs := newStub(t), loginStub(t, member)
	cloud := ours.cloud(t, func(c *Config) { c.Region = "home" })
	if cloud.Region() != "home" || cloud.At("", "").Region() != "home" || cloud.At("", "r1").Region() != "r1" ||
		cloud.At(theirs.url, "").Region() != "" {
		t.Error("it is in another region than it should be")
	}
	if got := cloud.At("", "r1").IdentityURL(); got != ours.url+"/v3" {
		t.Errorf("another region's Keystone is %s", got)
	}
	for _, url := range []string{theirs.url, theirs.url + "/v3", theirs.url + "/v3/"} {
		session, _, err := cloud.At(url, "r1").Credential(t.Context(), "c1", "s")
		if err != nil {
			t.Fatal(err)
		}
		if at, err := session.endpoint(t.Context(), "compute"); at != theirs.url+"/compute/" {
			t.Errorf("%s: Nova is at %s: %v", url, at, err)
		}
	}
	if _, _, err := cloud.At(theirs.url, "r2").Credential(t.Context(), "c1", "s"); err != nil {
		t.Fatal(err)
	}
	session, _, _ := cloud.At(theirs.url, "r2").Credential(t.Context(), "c1", "s")
	if _, err := session.Flavors(t.Context()); apperr.CodeOf(err) != apperr.Unsupported {
		t.Errorf("an unknown region: %v", err)
	}
	if len(ours.calls) != 0 {
		t.Errorf("our own cloud was asked for %s", ours.calls[0].URL)
	}
}

// TestRebuildAsItIsAskedFor: a server that boots from a volume needs a newer Nova, and one that has none of it says so.
func TestRebuildAsItIsAskedFor(t *testing.T) {
	t.Parallel()
	for fromVolume, version := range map[bool]string{false: "2.57", true: "2.93"} {
		s := newStub(t)
		s.answer("POST /compute/servers/id/action", 202, "")
		r := domain.Rebuild{
			ID: uuid.New(), ImageID: "i1", UserData: "#cloud-config", Metadata: map[string]string{"a": "b"},
		}
		if err := s.session(t).RebuildServer(t.Context(), "id", r, fromVolume); err != nil {
			t.Fatal(err)
		}
		sent := s.to("/compute/servers/id/action")[0]
		want := map[string]any{
			"rebuild": map[string]any{
				"imageRef": "i1", "user_data": "I2Nsb3VkLWNvbmZpZw==", "metadata": map[string]any{"a": "b"},
			},
		}
		if diff := cmp.Diff(want, bodyOf(t, sent)); diff != "" ||
			sent.Header.Get("X-Openstack-Nova-Api-Version") != version {
			t.Errorf("%s %v", diff, sent.Header)
		}
	}
	s := newStub(t)
	s.answer("POST /compute/servers/id/action", 406,
		`{"computeFault":{"message":"Version 2.93 is not supported by the API. Minimum is 2.1 and maximum is 2.79."}}`)
	err := s.session(t).RebuildServer(t.Context(), "id", domain.Rebuild{ImageID: "i1"}, true)
	if apperr.CodeOf(err) != apperr.Unsupported || !strings.Contains(apperr.As(err).Message, "2.93") {
		t.Errorf("an older Nova: %v", err)
	}
}

func TestPortsAreCounted(t *testing.T) {
	t.Parallel()
	s := newStub(t)
	s.answer("GET /network/v2.0/ports", 200, `{"ports":[{"id":"a"},{"id":"b"}]}`)
	n, err := s.session(t).Ports(t.Context(), "s1")
	if n != 2 || err != nil || s.to("/network/v2.0/ports")[0].URL.RawQuery != "fields=id&device_id=s1" {
		t.Errorf("got %d %v", n, err)
	}
}
