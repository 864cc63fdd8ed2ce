package openstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

const glance404 = `<html>
 <head>
  <title>404 Not Found</title>
 </head>
 <body>
  <h1>404 Not Found</h1>
  Failed to find image 11111111-2222-3333-4444-555555555555<br /><br />


 </body>
</html>`

// TestRefusals gives each of OpenStack's ways to refuse its code and its words, and shows no more than these.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status  int
		body    string
		code    apperr.Code
		message string
	}{
		"Nova, a bad request": {
			400, `{"badRequest": {"code": 400, "message": "Invalid key_name provided."}}`, apperr.Invalid,
			"nova: Invalid key_name provided.",
		},
		"Keystone, 401": {
			401,
			`{"error":{"code":401,"message":"The request you have made requires authentication.","title":"Unauthorized"}}`, apperr.Unauthenticated, "nova: The request you have made requires authentication.",
		},
		"Nova, a quota": {
			403,
			`{"forbidden": {"code": 403, "message": "Quota exceeded for cores: Requested 8, but already used 16 of 20 cores"}}`, apperr.Quota, "nova: Quota exceeded for cores: Requested 8, but already used 16 of 20 cores",
		},
		"Nova, another quota": {
			403, `{"forbidden": {"code": 403, "message": "Maximum number of ports exceeded"}}`, apperr.Quota,
			"nova: Maximum number of ports exceeded",
		},
		"Nova, policy": {
			403,
			`{"forbidden": {"code": 403, "message": "Policy doesn't allow os_compute_api:servers:create to be performed."}}`, apperr.Forbidden, "nova: Policy doesn't allow os_compute_api:servers:create to be performed.",
		},
		"Nova, 404": {
			404, `{"itemNotFound": {"code": 404, "message": "Instance 1 could not be found."}}`, apperr.NotFound,
			"nova: Instance 1 could not be found.",
		},
		"Glance, 404 in HTML": {
			404, glance404, apperr.NotFound, "nova: Failed to find image 11111111-2222-3333-4444-555555555555",
		},
		"an empty 404":       {404, "", apperr.NotFound, "nova: Not Found"},
		"JSON without words": {404, `{"canary":{"code":404}}`, apperr.NotFound, "nova: Not Found"},
		"odd JSON":           {404, `["canary"]`, apperr.NotFound, `nova: ["canary"]`},
		"Nova, too new": {
			406,
			`{"computeFault": {"code": 406, "message": "Version 2.99 is not supported by the API. Minimum is 2.1 and maximum is 2.93."}}`, apperr.Unsupported, "nova: Version 2.99 is not supported by the API. Minimum is 2.1 and maximum is 2.93.",
		},
		"Nova, a conflict": {
			409,
			`{"conflictingRequest": {"code": 409, "message": "Cannot 'start' instance 1 while it is in vm_state active"}}`, apperr.Conflict, "nova: Cannot 'start' instance 1 while it is in vm_state active",
		},
		"Neutron, a quota": {
			409,
			`{"NeutronError": {"type": "OverQuota", "message": "Quota exceeded for resources: ['port'].", "detail": ""}}`, apperr.Quota, "nova: Quota exceeded for resources: ['port'].",
		},
		"Nova of old, a quota": {
			413, `{"overLimit": {"code": 413, "message": "Quota exceeded for instances"}}`, apperr.Quota,
			"nova: Quota exceeded for instances",
		},
		"Cinder, a bad request": {
			400, `{"badRequest": {"code": 400, "message": "Invalid volume: Volume status must be available."}}`,
			apperr.Invalid, "nova: Invalid volume: Volume status must be available.",
		},
		"Cinder, a quota": {
			413, `{"overLimit": {"code": 413, "message": "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota.", "retryAfter": "0"}}`, apperr.Quota, "nova: VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota.",
		},
		"Placement, policy": {
			403, `{"errors": [{"status": 403, "title": "Forbidden", "detail": "Access was denied to this resource.\n\n Policy does not allow placement:traits:update to be performed.  ", "request_id": "req-1"}]}`, apperr.Forbidden,
			"nova: Access was denied to this resource. Policy does not allow placement:traits:update to be performed.",
		},
		"Octavia, a conflict": {
			409, `{"faultcode": "Client", "faultstring": "Load Balancer 1 is immutable and cannot be updated.", "debuginfo": null}`, apperr.Conflict, "nova: Load Balancer 1 is immutable and cannot be updated.",
		},
		"Octavia, a quota": {
			403, `{"faultcode": "Client", "faultstring": "Quota has been met for resources: load_balancer", "debuginfo": null}`,
			apperr.Quota, "nova: Quota has been met for resources: load_balancer",
		},
		"Octavia, a driver without that": {
			501, `{"faultcode": "Server", "faultstring": "Provider 'x' does not support a requested option: y", "debuginfo": null}`, apperr.Unsupported, "nova: Provider 'x' does not support a requested option: y",
		},
		"Barbican, policy": {
			403, `{"code": 403, "title": "Forbidden", "description": "Secret creation attempt not allowed - please review your user/project privileges"}`, apperr.Forbidden, "nova: Secret creation attempt not allowed - please review your user/project privileges",
		},
		"Barbican, a quota": {
			403, `{"code": 403, "title": "Forbidden", "description": "Quota reached for project 1. Only 5 secrets are allowed."}`,
			apperr.Quota, "nova: Quota reached for project 1. Only 5 secrets are allowed.",
		},
		"too large": {
			413, `{"badRequest": {"message": "Request is too large."}}`, apperr.TooLarge, "nova: Request is too large.",
		},
		"too many requests": {
			429, `{"overLimit": {"code": 429, "message": "Slow down."}}`, apperr.RateLimited, "nova: Slow down.",
		},
		"control characters": {
			400, `{"badRequest": {"message": "a\r\nSet-Cookie: b\u0000\t c"}}`, apperr.Invalid,
			"nova: a Set-Cookie: b\uFFFD c",
		},
		"not UTF-8": {400, "a\xff\x00b", apperr.Invalid, "nova: a\uFFFD b"},
		"very many words": {
			400, `{"badRequest": {"message": "` + strings.Repeat("é", 2000) + `"}}`, apperr.Invalid,
			"nova: " + strings.Repeat("é", maxMessage) + "…",
		},
		"Nova's own fault": {
			500,
			`{"computeFault": {"code": 500, "message": "Unexpected API Error. canary <class 'sqlalchemy.exc.DBError'>"}}`, apperr.BadGateway, "nova answered with status 500",
		},
		"a proxy's fault": {502, "<html>canary</html>", apperr.BadGateway, "nova answered with status 502"},
		"unavailable":     {503, "canary", apperr.Unavailable, "nova is not available"},
		"a proxy gave up": {504, "canary", apperr.Timeout, "nova is not available"},
		"a redirect":      {302, "canary", apperr.BadGateway, "nova answered with status 302"},
		"a status of its own": {
			418, `{"canary":{"message":"canary"}}`, apperr.BadGateway, "nova answered with status 418",
		},
		"success, not as agreed": {204, "", apperr.BadGateway, "nova answered with status 204"},
		"choices":                {300, `{"choices": ["canary"]}`, apperr.BadGateway, "nova answered with status 300"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			s.answer("POST /compute/servers", tc.status, tc.body)
			s.answer("GET /v3/auth/tokens", 401, `{"error":{"code":401,"message":"no"}}`)
			err := create(t.Context(), s.session(t))
			e := apperr.As(err)
			if e.Code != tc.code || e.Message != tc.message {
				t.Errorf("got %s %q", e.Code, e.Message)
			}
			if n := len(s.to("/compute/servers")); n != 1 {
				t.Errorf("it was sent %d times", n)
			}
			again := time.Duration(0)
			if tc.status == 429 || tc.status == 503 || tc.status == 504 {
				again = time.Minute
			}
			if e.RetryAfter != again {
				t.Errorf("again in %s", e.RetryAfter)
			}
			for _, secret := range []string{s.url, theToken, "canary"} {
				if strings.Contains(err.Error(), secret) && !strings.Contains(tc.message, secret) {
					t.Errorf("the log shows %s: %v", secret, err)
				}
			}
			if errors.Is(err, apperr.ErrNotSent) {
				t.Error("it was sent")
			}
		})
	}
}

// TestClassify takes gophercloud's error in each of its shapes.
func TestClassify(t *testing.T) {
	t.Parallel()
	refused := gophercloud.ErrUnexpectedResponseCode{
		URL: "http://canary", Method: "GET", Actual: 404, Body: []byte(`{"itemNotFound":{"message":"gone"}}`),
	}
	ours := apperr.New(apperr.Conflict, "ours")
	for name, tc := range map[string]struct {
		err  error
		want apperr.Code
	}{
		"nothing":            {nil, ""},
		"by value":           {refused, apperr.NotFound},
		"by pointer":         {&refused, apperr.NotFound},
		"wrapped":            {fmt.Errorf("x: %w", refused), apperr.NotFound},
		"one of ours":        {fmt.Errorf("x: %w", ours), apperr.Conflict},
		"the deadline":       {context.DeadlineExceeded, apperr.Timeout},
		"hung up":            {context.Canceled, apperr.ClientGone},
		"a network deadline": {&net.OpError{Op: "read", Err: timeout{}}, apperr.Timeout},
		"anything else":      {errors.New("x"), apperr.BadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := classify("nova", tc.err); apperr.CodeOf(err) != tc.want || err != nil &&
				strings.Contains(err.Error(), "canary") {
				t.Errorf("got %s %v", apperr.CodeOf(err), err)
			}
		})
	}
	for given, want := range map[string]time.Duration{
		"": 2 * time.Second, "x": 2 * time.Second, "0": 2 * time.Second, "-1": 2 * time.Second, "7": 7 * time.Second,
		"86400": time.Hour,
	} {
		if got := retryAfter(http.Header{"Retry-After": {given}}); got != want {
			t.Errorf("Retry-After %q is %s", given, got)
		}
	}
}

type timeout struct{}

func (timeout) Error() string { return "i/o timeout" }

// Timeout makes it a net.Error's.
func (timeout) Timeout() bool { return true }

// TestNotSent is said when no one listens, and at no other time: a server may have been made then.
func TestNotSent(t *testing.T) {
	t.Parallel()
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing := "http://" + hole.Addr().String()
	hole.Close()
	for name, tc := range map[string]struct {
		serve   http.HandlerFunc // nil: no one listens
		notSent bool
		want    apperr.Code
	}{
		"no one listens": {nil, true, apperr.Unavailable},
		"closed": {
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false, apperr.Unavailable,
		},
		"reset": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.(*net.TCPConn).SetLinger(0) // an RST, which is a read error at the other end
				_ = conn.Close()
			}
		}, false, apperr.Unavailable},
		"no HTTP": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "SSH-2.0-canary\r\n")
				_ = conn.Close()
			}
		}, false, apperr.Unavailable},
		"too late": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, false, apperr.Timeout},
		"503": {
			func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, false,
			apperr.Unavailable,
		},
		"torn": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, "{")
		}, false, apperr.BadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t)
			at := s.url + "/nova"
			if tc.serve == nil {
				at = refusing
			} else {
				s.mux.HandleFunc("POST /nova/servers", tc.serve)
			}
			cloud := s.cloud(t, nil)
			cloud.catalogs.Add("p1",
				catalogOf(t, `[{"type":"compute","endpoints":[{"interface":"public","region_id":"r1","url":"`+at+`"}]}]`))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := create(ctx, cloud.As(theToken, "p1"))
			if errors.Is(err, apperr.ErrNotSent) != tc.notSent || apperr.CodeOf(err) != tc.want {
				t.Errorf("got %s, not sent %t: %v", apperr.CodeOf(err), errors.Is(err, apperr.ErrNotSent), err)
			}
			if e := apperr.As(err); strings.Contains(e.Message, "127.0.0.1") || tc.want == apperr.Unavailable &&
				e.RetryAfter <= 0 {
				t.Errorf("the caller is shown %q, again in %s", e.Message, e.RetryAfter)
			}
		})
	}
}

// TestQuotas: each service has its own words for a quota, and oslo.limit has others for unified limits.
func TestQuotas(t *testing.T) {
	t.Parallel()
	for message, status := range map[string]int{
		"Project 1 is over a limit for [Resource servers is over limit of 1 due to current usage 1 and delta 1]": 403,
		"Resource server_key_pairs is over limit of 1 due to current usage 1 and delta 1":                        403,
		"The response body: Project 1 is over a limit for [Resource image_count_total is over limit of 1]":       413,
		"The limit has been exceeded on the number of allowed image tags. Attempted: 2, Maximum: 1":              413,
		"The size of the data 9 will exceed the limit. 1 bytes remaining.":                                       413,
		"Personality file limit exceeded":                                                  403,
		"Personality file path exceeds maximum 255":                                        403,
		"Personality file content exceeds maximum 10240":                                   403,
		"Requested volume size 9G is larger than maximum allowed limit 1G.":                413,
		"Image quota exceeded":                                                             413,
		"Per-tenant subnet pool prefix quota exceeded.":                                    409,
		"Creation not allowed because a quota has been reached":                            403,
		"Unable to create additional credentials, maximum of 1 already exceeded for user.": 403,
	} {
		s := newStub(t)
		s.answer("POST /compute/servers", status, `{"error": {"message": `+strconv.Quote(message)+`}}`)
		if err := create(t.Context(), s.session(t)); apperr.CodeOf(err) != apperr.Quota {
			t.Errorf("%s: got %s", message, apperr.CodeOf(err))
		}
	}
}

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
		"Keystone unavailable": {503, "", apperr.Unavailable, "keystone is not available", true},
		"Keystone broken":      {500, "", apperr.Unavailable, "keystone is not available", true},
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
	session, err := s.cloud(t, nil).Credential(t.Context(), "c1", "s")
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
// session is opened again when a service refuses it.
func TestATrustsUnauthorizedStays(t *testing.T) {
	t.Parallel()
	s := loginStub(t, member)
	s.answer("GET /v3/auth/tokens", 403,
		`{"error":{"code":403,"message":"You are not authorized to perform the requested action: identity:validate_token.","title":"Forbidden"}}`)
	flavorsStayUnauthorized(t, s)
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
		"Neutron unavailable": {
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

// TestAServiceNamesKeystone, which is unavailable or refuses the token, in keystonemiddleware's own words: the service
// has done nothing.
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
