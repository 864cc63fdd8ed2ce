package connections

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// keystone calls the real Keystone as any client does, and gives the status, a new token if there is one, and the body.
func keystone(t *testing.T, token, method, path string, body, into any) (status int, subject string) {
	t.Helper()
	var text []byte
	if body != nil {
		text, _ = json.Marshal(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, bare(testkit.Login(t, "demo").IdentityEndpoint)+path,
		bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Auth-Token", token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode >= 400: // shown if the test fails
		t.Logf("Keystone: %s %s: %d %s", method, path, resp.StatusCode, data)
	case into != nil:
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
	}
	return resp.StatusCode, resp.Header.Get("X-Subject-Token")
}

type object = map[string]any

// in is a token of the user of another one, in a project.
func in(t *testing.T, token, projectID string) string {
	t.Helper()
	auth := object{
		"identity": object{"methods": []string{"token"}, "token": object{"id": token}},
		"scope":    object{"project": object{"id": projectID}},
	}
	status, subject := keystone(t, "", "POST", "/v3/auth/tokens", object{"auth": auth}, nil)
	if status != 201 {
		t.Fatalf("a token of another project: %d", status)
	}
	return testkit.Canary(subject)
}

// colleague is a token of another user in the project, with a role there.
func colleague(t *testing.T, p *testkit.Project, role string) (token string) {
	t.Helper()
	other := testkit.BorrowProject(t)
	p.Grant(t, other.UserID, role)
	return in(t, other.Token(t), p.ID)
}

// trust is a trust as Keystone shows it.
type trust struct {
	ID        string `json:"id"`
	Trustor   string `json:"trustor_user_id"`
	Trustee   string `json:"trustee_user_id"`
	ProjectID string `json:"project_id"`
	ExpiresAt string `json:"expires_at"`
	Acts      bool   `json:"impersonation"`
	Uses      *int   `json:"remaining_uses"`
	Roles     []struct {
		Name string `json:"name"`
	} `json:"roles"`
}

// onlyTrust is the one trust that the project's member has given.
func onlyTrust(t *testing.T, p *testkit.Project) trust {
	t.Helper()
	ids := p.Trusts(t)
	if len(ids) != 1 {
		t.Fatalf("Keystone has the trusts %v", ids)
	}
	var body struct {
		Trust trust `json:"trust"`
	}
	if status, _ := keystone(t, p.Token(t), "GET", "/v3/OS-TRUST/trusts/"+ids[0], nil, &body); status != 200 {
		t.Fatalf("Keystone shows the trust with %d", status)
	}
	return body.Trust
}

// rules are access rules as Keystone takes them.
func rules(from []domain.AccessRule) []testkit.AccessRule {
	out := make([]testkit.AccessRule, len(from))
	for n, r := range from {
		out[n] = testkit.AccessRule{Service: r.Service, Method: r.Method, Path: r.Path}
	}
	return out
}
