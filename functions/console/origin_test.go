package console

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
	if a := b.ask(t, "GET", "/console/session", ""); a.Status != 200 {
		t.Errorf("after all that: got %d %s", a.Status, a.Body)
	}
}
