package openstack_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestKindsOfTokens: whoever Nova accepts is accepted here, but for tokens that Keystone does not let validate
// themselves. Those are never called invalid or expired.
func TestKindsOfTokens(t *testing.T) {
	t.Parallel()
	cloud, p, trustee := sandbox(t), testkit.NewProject(t), testkit.NewProject(t)
	id, secret := p.AppCredential(t)
	endingID, endingSecret := p.AppCredentialUntil(t, time.Now().UTC().Add(time.Hour))
	for name, tc := range map[string]struct {
		token   string
		user    string
		project string
		says    string // why it is refused
	}{
		"a password":                 {p.Token(t), p.UserID, p.ID, ""},
		"an application credential":  {p.AppCredentialToken(t, id, secret), p.UserID, p.ID, ""},
		"a credential that ends":     {p.AppCredentialToken(t, endingID, endingSecret), p.UserID, p.ID, ""},
		"a trust":                    {p.TrustToken(t, trustee, false), trustee.UserID, p.ID, ""},
		"a trust with impersonation": {p.TrustToken(t, trustee, true), "", "", "trusts with impersonation"},
		"a domain":                   {testkit.DomainToken(t), "", "", ""},
		"the system":                 {testkit.SystemToken(t), "", "", ""},
		"no scope":                   {p.Unscoped(t), p.UserID, "", ""},
	} {
		who, err := cloud.Validate(t.Context(), domain.Secret(tc.token))
		if tc.says != "" {
			if message := apperr.As(err).Message; apperr.CodeOf(err) != apperr.Forbidden ||
				!strings.Contains(message, tc.says) {
				t.Errorf("%s: %s %q", name, apperr.CodeOf(err), message)
			}
			if _, _, err := cloud.As(domain.Secret(tc.token), "x").Servers(t.Context(),
				domain.ServerQuery{Limit: 1}); err != nil {
				t.Errorf("%s: nova does not accept it either: %v", name, err)
			}
			continue
		}
		if err != nil || who.UserID == "" || tc.user != "" && who.UserID != tc.user || who.ProjectID != tc.project {
			t.Errorf("%s: %+v %v", name, who, err)
		}
	}
}

// cutOff is the real Keystone, with a list_limit of one project.
func cutOff(t *testing.T) *openstack.Cloud {
	t.Helper()
	to, err := url.Parse(sandbox(t).IdentityURL())
	if err != nil {
		t.Fatal(err)
	}
	keystone := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = to.Scheme, to.Host },
		ModifyResponse: func(resp *http.Response) error {
			if resp.Request.URL.Path != "/v3/projects" {
				return nil
			}
			var list map[string]any
			if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
				return err
			}
			all, _ := list["projects"].([]any)
			list["projects"], list["truncated"] = all[:1], true
			body, err := json.Marshal(list)
			resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			resp.Header.Del("Content-Length")
			return err
		},
	})
	t.Cleanup(keystone.Close)
	cloud, err := openstack.New(openstack.Config{AuthURL: keystone.URL, Interface: "public"}, openstack.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cloud.Close)
	return cloud
}

// TestAllProjectsOfACutOffList, as the real Keystone knows them.
func TestAllProjectsOfACutOffList(t *testing.T) {
	t.Parallel()
	p, admin := testkit.NewProject(t), domain.Secret(testkit.Token(t, "admin"))
	for _, domainID := range []string{"", p.DomainID} {
		found, err := cutOff(t).As(admin, "admin").Projects(t.Context(), domainID)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{p.Name, "demo", "alt"} { // others come and go
			if !slices.ContainsFunc(found, func(f domain.Project) bool {
				return f.Name == name && f.DomainID == p.DomainID
			}) {
				t.Errorf("domain %q: %s is not among the %d projects", domainID, name, len(found))
			}
		}
		if partner := slices.ContainsFunc(found,
			func(f domain.Project) bool { return f.Name == "partner-dev" }); partner != (domainID == "") {
			t.Errorf("domain %q: the other domain's project is listed: %t", domainID, partner)
		}
	}
}
