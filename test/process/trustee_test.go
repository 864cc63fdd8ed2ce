package process_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestTrustee says who the service account is, also one without any role, and says in one line why it cannot.
func TestTrustee(t *testing.T) {
	t.Parallel()
	env := func(more map[string]string) map[string]string {
		all := map[string]string{"OS_CLIENT_CONFIG_FILE": testkit.CloudsYAML(t)}
		maps.Copy(all, more)
		return all
	}
	known := env(map[string]string{"OS_CLOUD": "collector"})
	if code, out := testkit.Run(t, known, "trustee"); code != 0 || out != "TRUSTEE_USER_ID="+testkit.Trustee(t)+"\n" {
		t.Errorf("exit %d, %q", code, out)
	}
	nobody := env(map[string]string{"OS_CLOUD": "delegate"})
	if code, out := testkit.Run(t, nobody, "trustee"); code != 0 || !strings.HasPrefix(out, "TRUSTEE_USER_ID=") ||
		len(out) < 40 || out == "TRUSTEE_USER_ID="+testkit.Trustee(t)+"\n" {
		t.Errorf("without a role: exit %d, %q", code, out)
	}
	password := testkit.Canary("no-such-password")
	for want, more := range map[string]map[string]string{
		"no service account": {"OS_AUTH_URL": "http://127.0.0.1:1/v3"},
		"keystone cannot be reached": {
			"OS_AUTH_URL": "http://127.0.0.1:1/v3", "OS_USERNAME": "x", "OS_PASSWORD": password,
			"OS_USER_DOMAIN_NAME": "Default",
		},
		"no application credential": {
			"OS_AUTH_URL": "http://127.0.0.1:1/v3", "OS_APPLICATION_CREDENTIAL_ID": "x",
			"OS_APPLICATION_CREDENTIAL_SECRET": password,
		},
		"OS_CLOUD is \"nope\"": {"OS_CLOUD": "nope"},
	} {
		if code, out := testkit.Run(t, env(more), "trustee"); code != 1 || !strings.Contains(out, want) ||
			strings.Count(out, "\n") != 1 {
			t.Errorf("%v: exit %d, %q, want one line with %q", more, code, out, want)
		}
	}
}

// TestLongTheTrusteeNeedsNoRole: run-connections works with an account that may do nothing of its own, as on Knative.
func TestLongTheTrusteeNeedsNoRole(t *testing.T) {
	t.Parallel()
	owner, actor, facts := testkit.NewProject(t), testkit.NewProject(t), testkit.Sandbox(t)
	_, line := testkit.Run(t, map[string]string{
		"OS_CLIENT_CONFIG_FILE": testkit.CloudsYAML(t), "OS_CLOUD": "delegate",
	}, "trustee")
	env := testkit.Env(t, testkit.Database(t), map[string]string{
		"OS_CLOUD": "delegate", "TRUSTEE_USER_ID": strings.TrimSpace(strings.TrimPrefix(line, "TRUSTEE_USER_ID=")),
	})
	functions := newFleet(t, env, "connections", "launch", "run-connections", "poll-instances", "deliver-events")
	made := functions.of("connections").As(owner.Token(t)).Post(t, "/v1/connections", fmt.Sprintf(
		`{"kind": "trust", "actions": ["allocate", "start"], "usable_by": [%q], "expires_at": %q}`,
		actor.ID, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
	if made.Status != 201 {
		t.Fatalf("%d %s", made.Status, made.Body)
	}
	var connection struct{ ID string }
	made.JSON(t, &connection)
	ordered := functions.of("launch").As(actor.Token(t)).Post(t, "/v1/launch", fmt.Sprintf(
		`{"connection_id": %q, "name": "delegated", "flavor": %q, "image": %q, "networks": [%q]}`, connection.ID, facts.Flavor, facts.Image, facts.Network))
	if ordered.Status != 202 {
		t.Fatalf("%d %s", ordered.Status, ordered.Body)
	}
	testkit.Eventually(t, 3*time.Minute, "the server is there", func() bool { return len(owner.Servers(t)) == 1 })
	gone := functions.of("connections").As(owner.Token(t)).Do(t, "DELETE", "/v1/connections/"+connection.ID, "")
	if left := owner.Trusts(t); gone.Status != 204 || len(left) != 0 {
		t.Errorf("%d %s, and Keystone still has the trusts %v", gone.Status, gone.Body, left)
	}
}
