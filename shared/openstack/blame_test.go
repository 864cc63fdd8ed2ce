package openstack

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

const goodToken = `{"token":{"expires_at":"2099-01-02T03:04:05Z","user":{"id":"u1","name":"ann"},"project":{"id":"p1","name":"web","domain":{"id":"d1"}}}}`

// ruledToken is goodToken of an application credential that is limited to reading a path of Glance.
func ruledToken(path string) string {
	return strings.Replace(goodToken, `"user"`, `"application_credential":{"id":"c1","access_rules":[`+
		`{"service":"image","method":"GET","path":"`+path+`"}]},"user"`, 1)
}

// TestAServicesUnauthorizedIsAskedAbout at Keystone: the answers are Glance's and Keystone's own; the fake is there
// because the shared sandbox's Keystone cannot go away for one test.
func TestAServicesUnauthorizedIsAskedAbout(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status  int
		body    string
		want    apperr.Code
		message string
		nothing bool // it is certain that nothing was done
	}{
		"Keystone away":   {503, "", apperr.Unavailable, "keystone is not available", true},
		"Keystone broken": {500, "", apperr.Unavailable, "keystone is not available", true},
		"Keystone refuses, too": {
			401, `{"error":{"code":401,"message":"no"}}`, apperr.Unauthenticated, "glance: ", false,
		},
		"Keystone accepts it": {
			200, goodToken, apperr.Unavailable, "glance rejects a token that keystone accepts", true,
		},
		"no access rule":         {200, ruledToken("/v2/images/x"), apperr.Forbidden, "path /image/v2/images", false},
		"an access rule":         {200, ruledToken("/v2/images"), apperr.Unavailable, "glance rejects a token", true},
		"Keystone wants a pause": {429, "", apperr.RateLimited, "keystone", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /v3/auth/tokens", tc.status, tc.body)
			s.answer("GET /image/v2/images", 401, glance401)
			_, err := s.session(t).Images(t.Context(), "")
			e := apperr.As(err)
			if e.Code != tc.want || !strings.Contains(e.Message, tc.message) ||
				errors.Is(err, apperr.ErrNotSent) != tc.nothing {
				t.Errorf("got %s %v", e.Code, err)
			}
			if tc.want == apperr.Unavailable && e.RetryAfter <= 0 {
				t.Error("without Retry-After")
			}
			if strings.Contains(err.Error(), theToken) {
				t.Errorf("the log shows the token: %v", err)
			}
		})
	}
}

const glance401 = "<html>\n <head>\n  <title>401 Unauthorized</title>\n </head>\n <body>\n  <h1>401 " +
	"Unauthorized</h1>\n  This server could not verify that you are authorized.<br /><br />\n </body>\n</html>"

// flavorsStayUnauthorized reads flavors with an application credential, which Nova refuses with 401.
func flavorsStayUnauthorized(t *testing.T, s *stub) {
	t.Helper()
	s.answer("GET /compute/flavors/detail", 401,
		`{"error":{"code":401,"message":"The request you have made requires authentication."}}`)
	session, _, err := s.cloud(t, nil).Credential(t.Context(), "c1", "s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.Flavors(t.Context()); apperr.CodeOf(err) != apperr.Unauthenticated {
		t.Errorf("got %v", err)
	}
}

// TestALoginsUnauthorizedStays 401 when Keystone accepts the token: an application credential's access rules do not
// allow the call.
func TestALoginsUnauthorizedStays(t *testing.T) {
	t.Parallel()
	s := loginStub(t, member)
	s.answer("GET /v3/auth/tokens", 200, goodToken)
	flavorsStayUnauthorized(t, s)
}

// TestATrustsUnauthorizedStays: Keystone does not let the token of a trust with impersonation validate itself, and its
// session is opened anew when a service refuses it.
func TestATrustsUnauthorizedStays(t *testing.T) {
	t.Parallel()
	s := loginStub(t, member)
	s.answer("GET /v3/auth/tokens", 403,
		`{"error":{"code":403,"message":"You are not authorized to perform the requested action: identity:validate_token.","title":"Forbidden"}}`)
	flavorsStayUnauthorized(t, s)
}

// TestKnowsProject: only Keystone's own 404 says that a project is gone.
func TestKnowsProject(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status int
		body   string
		want   apperr.Code
	}{
		"it is there": {200, `{"project":{"id":"p1"}}`, ""},
		"it is gone": {
			404, `{"error":{"code":404,"message":"Could not find project: p1.","title":"Not Found"}}`, apperr.NotFound,
		},
		"a proxy's 404": {
			404, `<html><body>The requested URL /v3/projects/p1 was not found</body></html>`, apperr.Unavailable,
		},
		"who may not": {
			403, `{"error":{"code":403,"message":"You are not authorized.","title":"Forbidden"}}`, apperr.Forbidden,
		},
		"another's JSON": {404, `{"message":"no Route matched with those values"}`, apperr.Unavailable},
	} {
		s := loginStub(t, member)
		s.answer("GET /v3/projects/p1", tc.status, tc.body)
		if err := s.session(t).CheckProject(t.Context(), "p1"); apperr.CodeOf(err) != tc.want {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestNovasErrorNamesTheServiceAtFault: the texts are those of Nova's expected_errors in Zed.
func TestNovasErrorNamesTheServiceAtFault(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		class   string
		neutron http.HandlerFunc // nil: it answers
		want    apperr.Code
		message string
	}{
		"Neutron away": {
			"keystoneauth1.exceptions.connection.ConnectFailure", hangUp, apperr.Unavailable,
			"neutron is not available, and nova cannot do without it",
		},
		"Neutron behind a proxy": {
			"keystoneauth1.exceptions.http.ServiceUnavailable", status(503), apperr.Unavailable,
			"neutron is not available, and nova cannot do without it",
		},
		"Neutron's client": {
			"neutronclient.common.exceptions.ConnectionFailed", hangUp, apperr.Unavailable,
			"neutron is not available, and nova cannot do without it",
		},
		"Neutron hangs": {
			"neutronclient.common.exceptions.ConnectionFailed", hang, apperr.Unavailable,
			"neutron is not available, and nova cannot do without it",
		},
		"Neutron answers to us": {
			"neutronclient.common.exceptions.ConnectionFailed", nil, apperr.BadGateway,
			"nova answered with status 500: it could not use neutron",
		},
		"everybody answers to us": {
			"keystoneauth1.exceptions.connection.ConnectFailure", nil, apperr.BadGateway,
			"it could not use neutron, glance, placement, cinder or keystone",
		},
		"Nova's own fault": {
			"sqlalchemy.exc.DBError", hangUp, apperr.BadGateway, "nova answered with status 500",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("GET /compute/servers/id", 500, nova500(tc.class))
			if tc.neutron == nil {
				tc.neutron = status(200)
			}
			s.mux.HandleFunc("GET /network/", tc.neutron)
			// a probe without a limit of its own would end with this one, as a timeout
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			err := read(ctx, s.session(t))
			if e := apperr.As(err); e.Code != tc.want || !strings.Contains(e.Message, tc.message) ||
				strings.Contains(e.Message, "class") {
				t.Errorf("got %s %v", e.Code, err)
			}
		})
	}
}

// TestAServiceNamesKeystone, which is away or refuses the token, in keystonemiddleware's own words: the service has
// done nothing.
func TestAServiceNamesKeystone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"<html><body>The Keystone service is temporarily unavailable.</body></html>",
		`{"message": "The server is currently unavailable. Please try again at a later time.<br /><br />\nThe Keystone service is temporarily unavailable.\n\n",
			"code": "503 Service Unavailable", "title": "Service Unavailable"}`,
	} {
		s := newStub(t)
		s.answer("GET /compute/servers/id", 503, body)
		err := read(t.Context(), s.session(t))
		if e := apperr.As(err); e.Code != apperr.Unavailable || e.Message != "keystone is not available" ||
			!errors.Is(err, apperr.ErrNotSent) {
			t.Errorf("got %v", err)
		}
	}
}
