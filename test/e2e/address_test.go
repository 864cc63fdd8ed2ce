//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestClientAddress has a client forge X-Forwarded-For: the request log shows the address that it connects from, behind
// the ingress, the queue-proxy, the activator and the gateway.
func TestClientAddress(t *testing.T) {
	conn := testkit.Connect(t, databaseURL)
	token := testkit.Token(t, "demo")
	for _, service := range []string{"servers", "gateway"} {
		c := client(t, service, token)
		remote := func(header ...string) string {
			answer := c.Get(t, "/v1/servers?limit=1", header...)
			return testkit.Scalar[string](t, conn, "select remote from requests where request_id = $1",
				answer.Header.Get("X-Request-Id"))
		}
		honest := remote()
		for _, forged := range []string{"203.0.113.9", "203.0.113.9, 10.0.0.1", "127.0.0.1", "not an address"} {
			if got := remote("X-Forwarded-For", forged); got != honest {
				t.Errorf("%s with X-Forwarded-For %q: the log shows %s, want %s", service, forged, got, honest)
			}
		}
	}
}

// TestKourierIsWarnedOf puts the setting of another ingress on the cluster: Kourier itself is not there.
func TestKourierIsWarnedOf(t *testing.T) {
	kourier := func(args ...string) {
		t.Helper()
		command(t, "kubectl", append([]string{"-n", "knative-serving"}, args...)...)
	}
	kourier("create", "configmap", "config-kourier")
	t.Cleanup(func() { _, _ = try("kubectl", "-n", "knative-serving", "delete", "configmap", "config-kourier") })
	warned := func() bool {
		// The overlay has placeholders, so nothing is deployed.
		cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "deploy"), "up")
		cmd.Env = append(os.Environ(), "OVERLAY=production")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "placeholders") {
			t.Fatalf("deploy: %v: %s", err, out)
		}
		return strings.Contains(string(out), "use-remote-address")
	}
	if !warned() {
		t.Error("no warning, although Kourier believes X-Forwarded-For")
	}
	kourier("patch", "configmap", "config-kourier", "-p", `{"data":{"use-remote-address":"true"}}`)
	if warned() {
		t.Error("a warning, although Kourier adds the client's address")
	}
}
