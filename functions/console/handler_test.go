package console

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// browser is a client of the console of one replica. It keeps the last cookie that it got.
type browser struct {
	*testkit.Client
	cookie string
}

// fromPage are the headers that the page's own script sends with each request.
var fromPage = []string{pageHeader, "1", "Sec-Fetch-Site", "same-origin"}

// send sends a request as the page does, with more headers or others.
func (b *browser) send(t *testing.T, method, path, body string, more ...string) testkit.Answer {
	t.Helper()
	header := slices.Concat([]string{"Content-Type", "application/json"}, fromPage, more)
	if b.cookie != "" {
		header = append(header, "Cookie", cookieName+"="+b.cookie)
	}
	a := b.Do(t, method, path, body, header...)
	for _, given := range (&http.Response{Header: a.Header}).Cookies() {
		if b.cookie = given.Value; b.cookie != "" {
			secret, _ := base64.RawURLEncoding.DecodeString(testkit.Canary(b.cookie))
			testkit.Canary(hex.EncodeToString(secret)) // as a dump shows bytes
		}
	}
	return a
}

// signIn is a browser that has signed in.
func signInTo(t *testing.T, app *testkit.Client, body string) *browser {
	t.Helper()
	b := &browser{Client: app}
	if a := b.send(t, "POST", "/console/session", body); a.Status != 201 || b.cookie == "" {
		t.Fatalf("signing in: got %d %s", a.Status, a.Body)
	}
	return b
}

// password is the body of a sign-in as the project's member.
func password(p *testkit.Project, more string) string {
	return fmt.Sprintf(`{"user": %q, "password": %q%s}`, p.Name, p.Environment()["OS_PASSWORD"], more)
}

func TestSignIn(t *testing.T) {
	t.Parallel()
	p, other, elsewhere := testkit.BorrowProject(t), testkit.BorrowProject(t), testkit.BorrowProject(t)
	several := testkit.BorrowProject(t)
	other.Grant(t, several.UserID, "member")
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	named := func(name string) string { return fmt.Sprintf(`, "project": %q`, name) }
	for name, c := range map[string]struct{ body, project, detail string }{
		"by a password, to the only project": {body: password(p, ""), project: p.ID},
		"to a named project":                 {body: password(several, named(other.Name)), project: other.ID},
		"to a project by its id":             {body: password(several, named(several.ID)), project: several.ID},
		"to a project that its domain tells": {body: password(several,
			named(other.Name)+`, "project_domain": "Default"`), project: other.ID},
		"with the user's domain": {body: password(p, `, "user_domain": "Default"`), project: p.ID},
		"by a token":             {body: fmt.Sprintf(`{"token": %q}`, other.Token(t)), project: other.ID},
		"to one of several":      {body: password(several, ""), detail: "project: choose one of: "},
		"to a project that is not the user's own": {
			body:   password(several, named(elsewhere.Name)),
			detail: `is not a project of the user; choose one of: `,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &browser{Client: app}
			a := b.send(t, "POST", "/console/session", c.body)
			if c.detail != "" {
				// the error repeats the name that was sent
				text := strings.ReplaceAll(string(a.Body), `\"`+elsewhere.Name+`\" is not`, "is not")
				if a.Status != 400 || !strings.Contains(text, c.detail) || !testkit.Names(t, a, "project") ||
					!strings.Contains(text, other.Name) ||
					strings.Contains(text, elsewhere.Name) || b.cookie != "" {
					t.Errorf("got %d %s", a.Status, a.Body)
				}
				return
			}
			var made, shown Session
			a.JSON(t, &made)
			if a.Status != 201 || made.Project.ID != c.project || made.User.ID == "" || len(made.Roles) == 0 ||
				time.Until(made.ExpiresAt) > 12*time.Hour {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
			a = b.send(t, "GET", "/console/session", "")
			a.JSON(t, &shown)
			if a.Status != 200 || shown.Project != made.Project || shown.User != made.User ||
				!shown.ExpiresAt.Equal(made.ExpiresAt) {
				t.Errorf("it shows %d %s", a.Status, a.Body)
			}
		})
	}
}

// TestSignInRejectsBadCredentials with one text for everything that Keystone rejects, and without a cookie.
func TestSignInRejectsBadCredentials(t *testing.T) {
	t.Parallel()
	p, disabled, without := testkit.BorrowProject(t), testkit.BorrowProject(t), testkit.BorrowProject(t)
	disabled.Disable(t)
	without.Leave(t)
	wrong := testkit.Canary("no-such-password-" + p.ID)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	for name, c := range map[string]struct {
		body, names string
		status      int
	}{
		"a wrong password":           {fmt.Sprintf(`{"user": %q, "password": %q}`, p.Name, wrong), "", 401},
		"a user who does not exist":  {fmt.Sprintf(`{"user": "nobody-%s", "password": %q}`, p.ID, wrong), "", 401},
		"a disabled user":            {password(disabled, ""), "", 401},
		"a domain that is not there": {password(p, `, "user_domain": "nowhere"`), "", 401},
		"someone else's project": {
			password(p, fmt.Sprintf(`, "project": %q, "project_domain": "Default"`, without.Name)),
			"", 401,
		},
		"a user without a project":  {password(without, ""), "", 403},
		"an invalid token":          {fmt.Sprintf(`{"token": %q}`, wrong), "", 401},
		"a token of no project":     {fmt.Sprintf(`{"token": %q}`, p.Unscoped(t)), "", 401},
		"a token of a domain":       {fmt.Sprintf(`{"token": %q}`, testkit.DomainToken(t)), "", 403},
		"an expired token":          {fmt.Sprintf(`{"token": %q}`, p.ExpiredToken(t)), "", 401},
		"a token with a password":   {fmt.Sprintf(`{"token": %q, "password": %q}`, wrong, wrong), "token", 400},
		"a token that breaks lines": {`{"token": "a\r\nb"}`, "token", 400},
		"a token that is too long":  {fmt.Sprintf(`{"token": %q}`, strings.Repeat("x", 9000)), "token", 400},
		"nobody":                    {`{}`, "user", 400},
		"no password":               {`{"user": "demo"}`, "password", 400},
		// 503 only if there is the user
		"a password that is no text": {fmt.Sprintf(`{"user": %q, "password": "a\u0000b"}`, p.Name), "password", 400},
		"a long name":                {fmt.Sprintf(`{"user": %q, "password": "x"}`, strings.Repeat("x", 256)), "user", 400},
		"another field":              {`{"user": "demo", "pass": "x"}`, "pass", 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &browser{Client: app}
			a := b.send(t, "POST", "/console/session", c.body)
			if a.Status != c.status || c.names != "" && !testkit.Names(t, a, c.names) || b.cookie != "" {
				t.Errorf("got %d %s", a.Status, a.Body)
			}
			if c.status == 401 && !strings.Contains(c.body, "token") &&
				!strings.Contains(string(a.Body),
					`"Keystone does not accept this: the user, the password, a domain or the project is wrong, `+
						`or the user is disabled"`) {
				t.Errorf("its words are %s", a.Body)
			}
		})
	}
	if a := app.Do(t, "POST", "/console/session", `{}`, append([]string{"Content-Type", "text/plain"},
		fromPage...)...); a.Status != 415 {
		t.Errorf("no JSON: got %d %s", a.Status, a.Body)
	}
}

// TestAllowLists apply to signing in, and to the choice of projects.
func TestAllowLists(t *testing.T) {
	t.Parallel()
	served, other := testkit.BorrowProject(t), testkit.BorrowProject(t)
	served.Grant(t, other.UserID, "member")
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), map[string]string{"ALLOWED_PROJECTS": served.ID}),
		Function)
	for body, want := range map[string]int{
		password(other, ""): 201, // of his two projects one is served
		password(other, fmt.Sprintf(`, "project": %q`, other.Name)):                              403,
		password(other, fmt.Sprintf(`, "project": %q, "project_domain": "Default"`, other.Name)): 403,
		fmt.Sprintf(`{"token": %q}`, other.Token(t)):                                             403,
		fmt.Sprintf(`{"token": %q}`, served.Token(t)):                                            201,
	} {
		b := &browser{Client: app}
		if a := b.send(t, "POST", "/console/session", body); a.Status != want || (b.cookie != "") != (want == 201) {
			t.Errorf("got %d %s, want %d", a.Status, a.Body, want)
		}
	}
}

// TestCookie is hidden from scripts and other sites, and needs https except on the own machine.
func TestCookie(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	body := fmt.Sprintf(`{"token": %q}`, p.Token(t))
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	for name, c := range map[string]struct {
		header []string
		status int
		secure bool
	}{
		"this machine": {nil, 201, false},
		"by https": {
			[]string{"X-Forwarded-Proto", "https", "X-Forwarded-Host", "cloudfn.example.com"},
			201, true,
		},
		"by https, two proxies": {[]string{
			"X-Forwarded-Proto", "https, http", "X-Forwarded-Host",
			"cloudfn.example.com, inner",
		}, 201, true},
		"by http": {
			[]string{"X-Forwarded-Proto", "http", "X-Forwarded-Host", "cloudfn.example.com"},
			403,
			false,
		},
		"by http, as no one says":    {[]string{"X-Forwarded-Host", "cloudfn.example.com"}, 403, false},
		"a name like this machine's": {[]string{"X-Forwarded-Host", "localhost.example.com"}, 403, false},
		"localhost":                  {[]string{"X-Forwarded-Host", "localhost:8080"}, 201, false},
		"::1":                        {[]string{"X-Forwarded-Host", "[::1]:8080"}, 201, false},
		"by https, as a gateway says": {[]string{
			"Forwarded", `host="cloudfn.example.com";proto="https"`, "X-Forwarded-Proto",
			"http", "X-Forwarded-Host", "console.cloudfn.svc",
		}, 201, true},
		"by http, as a gateway says": {
			[]string{"Forwarded", `host=cloudfn.example.com; Proto=http, proto=https`},
			403,
			false,
		},
		"::1 without a port": {[]string{"X-Forwarded-Host", "[::1]"}, 201, false},
		"by https, as its page says": {[]string{
			"X-Forwarded-Host", "cloudfn.example.com", "Origin",
			"https://cloudfn.example.com",
		}, 201, true},
		"a proxy that says nothing": {[]string{"Origin", "https://cloudfn.example.com"}, 201, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := app.Post(t, "/console/session", body, append(c.header, fromPage...)...)
			if a.Status != c.status {
				t.Fatalf("got %d %s", a.Status, a.Body)
			}
			given := (&http.Response{Header: a.Header}).Cookies()
			if c.status != 201 {
				if len(given) != 0 || !strings.Contains(string(a.Body), "https") {
					t.Errorf("got %v %s", given, a.Body)
				}
				return
			}
			testkit.Canary(given[0].Value)
			name, path := "cloudfn_session", "/console"
			if c.secure {
				name, path = "__Host-cloudfn_session", "/"
			}
			if k := given[0]; len(given) != 1 || k.Name != name || !k.HttpOnly ||
				k.SameSite != http.SameSiteStrictMode || k.Path != path ||
				k.Secure != c.secure || k.Domain != "" || len(k.Value) != 43 {
				t.Errorf("got %s", a.Header.Get("Set-Cookie"))
			}
			if strings.Contains(string(a.Body), given[0].Value) {
				t.Errorf("script can read it: %s", a.Body)
			}
		})
	}
}

// TestRejectsOtherSites whether the browser sends Sec-Fetch-Site or is too old for it.
func TestRejectsOtherSites(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function)
	b := signInTo(t, app, fmt.Sprintf(`{"token": %q}`, p.Token(t)))
	own := strings.TrimPrefix(app.URL, "http://")
	for name, c := range map[string]struct {
		header []string
		ok     bool
	}{
		"without the header":          {[]string{"Sec-Fetch-Site", "same-origin"}, false},
		"the header says no":          {[]string{pageHeader, "0"}, false},
		"another site":                {[]string{pageHeader, "1", "Sec-Fetch-Site", "cross-site"}, false},
		"another host of the site":    {[]string{pageHeader, "1", "Sec-Fetch-Site", "same-site"}, false},
		"another origin":              {[]string{pageHeader, "1", "Origin", "https://evil.example.com"}, false},
		"no origin":                   {[]string{pageHeader, "1", "Origin", "null"}, false},
		"the page":                    {fromPage, true},
		"the page, in an old browser": {[]string{pageHeader, "1", "Origin", "http://" + own}, true},
		"the page behind a proxy": {[]string{
			pageHeader, "1", "Origin", "https://cloudfn.example.com", "X-Forwarded-Host",
			"cloudfn.example.com", "X-Forwarded-Proto", "https",
		}, true},
		"a program": {[]string{pageHeader, "1"}, true},
	} {
		isForbidden := func(a testkit.Answer) bool { return a.Status == 403 }
		header := append([]string{"Cookie", cookieName + "=" + b.cookie}, c.header...)
		// The site is checked before the body.
		if a := app.Post(t, "/console/session", `{}`, c.header...); isForbidden(a) == c.ok || !c.ok &&
			a.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s, to sign in: got %d %s", name, a.Status, a.Body)
		}
		if a := app.Post(t, "/console/api/v1/launch", `{}`, header...); isForbidden(a) == c.ok {
			t.Errorf("%s, to launch: got %d %s", name, a.Status, a.Body)
		}
		if !c.ok {
			if a := app.Do(t, "DELETE", "/console/session", "", header...); !isForbidden(a) {
				t.Errorf("%s, to sign out: got %d %s", name, a.Status, a.Body)
			}
		}
	}
	if a := app.Get(t, "/console/api/v1/servers", "Cookie", cookieName+"="+b.cookie); a.Status != 403 {
		t.Errorf("to read without the header: got %d %s", a.Status, a.Body)
	}
	if a := b.send(t, "GET", "/console/session", ""); a.Status != 200 {
		t.Errorf("after all that: got %d %s", a.Status, a.Body)
	}
}

// TestHostCookie: over https only the cookie counts that no other site of the domain can set.
func TestHostCookie(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		https        bool
		cookie, want string
	}{
		"https":                {true, hostCookie + "=a; " + cookieName + "=b", "a"},
		"https, another's":     {true, cookieName + "=b", ""},
		"https, given twice":   {true, hostCookie + "=a; " + hostCookie + "=b", ""},
		"plain http":           {false, cookieName + "=b", "b"},
		"behind a quiet proxy": {false, hostCookie + "=a; " + cookieName + "=b", "a"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/console/session", nil)
		r.Header.Set("Cookie", tc.cookie)
		if tc.https {
			r.Header.Set("X-Forwarded-Proto", "https")
		}
		if got := cookieOf(r).Reveal(); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}

// TestSignInsAreLimited by all replicas together, whether they succeed or not.
func TestSignInsAreLimited(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"SIGN_IN_RATE_LIMIT": "2"})
	one, two := testkit.Start(t, env, Function), testkit.Start(t, env, Function)
	signInTo(t, one, password(p, ""))
	b := &browser{Client: two}
	for n, want := range []int{401, 429} {
		if a := b.send(t, "POST", "/console/session", `{"user": "nobody", "password": "x"}`); a.Status != want {
			t.Errorf("sign-in %d: got %d %s", n, a.Status, a.Body)
		}
	}
	if a := (&browser{Client: one}).send(t, "POST", "/console/session", password(p, "")); a.Status != 429 ||
		a.Header.Get("RateLimit-Policy") != `"sign-in";q=2;w=60` {
		t.Errorf("the first replica: got %d %v", a.Status, a.Header)
	}
}

// TestSessionsDoNotShareAnAddress: many users may be behind one. Who is not signed in counts for it.
func TestSessionsDoNotShareAnAddress(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	env := testkit.Env(t, testkit.Database(t), map[string]string{"ADDRESS_RATE_LIMIT": "1"})
	one, two := testkit.Start(t, env, Function), testkit.Start(t, env, Function)
	signedIn := signInTo(t, one, password(p, ""))
	for _, app := range []*testkit.Client{one, two} {
		b := &browser{app, signedIn.cookie}
		for n := range 130 {
			// The second one has the process send itself another, of an unknown token.
			for path, want := range map[string]int{"/console/session": 200, "/console/api/v1/nothing": 404} {
				if a := b.send(t, "GET", path, ""); a.Status != want {
					t.Fatalf("request %d: got %d %s", n, a.Status, a.Body)
				}
			}
		}
	}
	if a := signedIn.send(t, "DELETE", "/console/session", ""); a.Status != 204 {
		t.Fatalf("signing out: got %d %s", a.Status, a.Body)
	}
	b := &browser{two, signedIn.cookie}
	if a := b.send(t, "GET", "/console/session", ""); a.Status != 401 {
		t.Errorf("an ended session: got %d %s", a.Status, a.Body)
	}
	status := 0
	for n := 0; status != 429 && n < 1000; n++ {
		status = b.send(t, "GET", "/console/session", "").Status
	}
	if status != 429 {
		t.Errorf("without a session: got %d", status)
	}
}

// TestFiles checks the security headers and the ETag. Files need no session.
func TestFiles(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("static")
	if err != nil {
		t.Fatal(err)
	}
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function)
	paths := map[string]string{"/console/": "text/html; charset=utf-8"}
	for _, e := range entries {
		_, extension, _ := strings.Cut(e.Name(), ".")
		paths["/console/"+e.Name()] = contentTypes["."+extension]
	}
	for path, kind := range paths {
		a := app.Get(t, path)
		if a.Status != 200 || len(a.Body) == 0 || kind == "" || a.Header.Get("Content-Type") != kind {
			t.Errorf("%s: got %d %s", path, a.Status, a.Header)
		}
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; " +
				"img-src 'self' data:; connect-src 'self'; form-action 'none'; " +
				"base-uri 'none'; frame-ancestors 'none'",
			"Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
			"Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-cache",
		} {
			if got := a.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		tag := a.Header.Get("ETag")
		for _, known := range []string{tag, "W/" + tag, `"x", ` + tag} {
			if again := app.Get(t, path, "If-None-Match", known); again.Status != 304 || len(again.Body) != 0 ||
				again.Header.Get("ETag") != tag {
				t.Errorf("%s, known as %s: got %d", path, known, again.Status)
			}
		}
		if other := app.Get(t, path, "If-None-Match", `"other"`); other.Status != 200 {
			t.Errorf("%s, known as another: got %d", path, other.Status)
		}
		head, err := http.Head(app.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		if _ = head.Body.Close(); head.StatusCode != http.StatusOK || head.Header.Get("ETag") != tag {
			t.Errorf("HEAD %s: got %d", path, head.StatusCode)
		}
	}
	for _, path := range []string{"/", "/console"} {
		if a := app.Get(t, path); a.Status != 302 || a.Header.Get("Location") != "/console/" {
			t.Errorf("%s: got %d %s", path, a.Status, a.Header)
		}
	}
	for _, path := range []string{
		"/console/nothing.js", "/console/..%2fconfig.go", "/console/static", "/console/%2e%2e",
		"/console/x/y",
	} {
		if a := app.Get(t, path); a.Status != 404 {
			t.Errorf("%s: got %d", path, a.Status)
		}
	}
	if n := testkit.Scalar[int](t, testkit.Pool(t, database),
		"select count(*)::int from requests where status in (200, 302, 304)"); n != 0 {
		t.Errorf("%d requests for files are in the log", n)
	}
}

// TestFilesWithoutPostgres serves the page, which reports the failure.
func TestFilesWithoutPostgres(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, "postgres://nobody@127.0.0.1:1/x", nil), Function)
	if a := app.Get(t, "/console/"); a.Status != 200 {
		t.Errorf("the page: got %d", a.Status)
	}
	if a := app.Get(t, "/console/session", "Cookie", cookieName+"=x"); a.Status != 503 ||
		a.Header.Get("Retry-After") == "" {
		t.Errorf("the session: got %d %s", a.Status, a.Body)
	}
}

// TestEveryEventIsOffered: the form for a callback has all types of events that one may subscribe to.
func TestEveryEventIsOffered(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("static/callbacks.js")
	_, list, _ := strings.Cut(string(text), "const types = [")
	list, _, isFound := strings.Cut(list, "]")
	var offered []string
	for name := range strings.FieldsSeq(strings.ReplaceAll(list, ",", " ")) {
		offered = append(offered, "cloudfn."+strings.Trim(name, "'")+".v1")
	}
	if diff := cmp.Diff(domain.EventTypes(), offered); err != nil || !isFound || diff != "" {
		t.Error(err, diff)
	}
}
