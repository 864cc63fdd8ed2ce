//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestConsole from zero: the page comes through the gateway, no one signs in by plain http, and who signs in by https
// uses the other functions with his session.
func TestConsole(t *testing.T) {
	project := testkit.NewProject(t)
	toZero(t, "console", "servers")
	gateway := client(t, "gateway", "")
	if a := gateway.Get(t, "/console/"); a.Status != http.StatusOK {
		t.Fatalf("the page: %d %s", a.Status, a.Body)
	}
	body := fmt.Sprintf(`{"token": %q}`, project.Token(t))
	fromPage := []string{"X-Cloudfn-Console", "1", "Sec-Fetch-Site", "same-origin"}
	if a := gateway.Post(t, "/console/session", body, fromPage...); a.Status != http.StatusForbidden {
		t.Errorf("signing in by plain http: %d %s", a.Status, a.Body)
	}
	// The test cluster's ingress takes no https, so the test says what one that does would say.
	console := client(t, "console", "")
	forwarded := append(fromPage, "Forwarded", "host=cloudfn.example.com;proto=https")
	a := console.Post(t, "/console/session", body, forwarded...)
	if a.Status != http.StatusCreated {
		t.Fatalf("signing in: %d %s", a.Status, a.Body)
	}
	cookies := (&http.Response{Header: a.Header}).Cookies()
	if len(cookies) != 1 || !cookies[0].Secure {
		t.Fatalf("it gives %d cookies", len(cookies))
	}
	session := append([]string{"Cookie", cookies[0].Name + "=" + testkit.Canary(cookies[0].Value)}, fromPage...)
	for _, via := range []*testkit.Client{console, gateway} {
		if a := via.Get(t, "/console/api/v1/servers", session...); a.Status != http.StatusOK {
			t.Errorf("servers: %d %s", a.Status, a.Body)
		}
	}
	if a := gateway.Do(t, http.MethodDelete, "/console/session", "", session...); a.Status != http.StatusNoContent {
		t.Errorf("signing out: %d %s", a.Status, a.Body)
	}
	if a := console.Get(t, "/console/session", session...); a.Status != http.StatusUnauthorized {
		t.Errorf("after signing out: %d %s", a.Status, a.Body)
	}
}
