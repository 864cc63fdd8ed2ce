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

// block is the first shell block of a chapter of knative/README.md.
func block(t testing.TB, chapter string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testkit.Root(), "knative", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "\n## "+chapter+"\n")
	_, after, found := strings.Cut(after, "\n```sh\n")
	commands, _, ended := strings.Cut(after, "\n```\n")
	if !found || !ended {
		t.Fatalf("knative/README.md has no shell block under %q", chapter)
	}
	return commands
}

// TestOtherWays runs the README's commands for kn and then for func, word by word, in a namespace of their own.
func TestOtherWays(t *testing.T) {
	const other = "cloudfn-by-hand"
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig") // the commands change the current namespace
	config, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kubeconfig, config, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The Services first: a namespace with pods waits for half of their grace period, which is minutes.
		_, _ = try("kubectl", "-n", other, "delete", "ksvc", "--all")
		_, _ = try("kubectl", "-n", other, "wait", "pods", "--all", "--for=delete", "--timeout=120s")
		_, _ = try("kubectl", "delete", "namespace", other)
	})
	settings := get[struct {
		Items []struct{ Data map[string]string }
	}](t, "configmap", "-l", "app.kubernetes.io/part-of=cloudfn")
	run := func(chapter string) {
		t.Helper()
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", block(t, chapter))
		cmd.Dir = testkit.Root()
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "NAMESPACE="+other, "IMAGE="+image,
			"EVENT_KEY=by-hand",
			"DATABASE_URL=postgres://postgres:e2e-canary@"+host+":5432/cloudfn_e2e",
			"OS_AUTH_URL="+settings.Items[0].Data["OS_AUTH_URL"],
			"OS_INTERFACE="+settings.Items[0].Data["OS_INTERFACE"],
			"OS_USERNAME=collector", "OS_PASSWORD=secret", "OS_PROJECT_NAME=cloudfn",
			"DELEGATE_USERNAME=delegate", "DELEGATE_PASSWORD=secret",
			"LEASES_USERNAME=leases", "LEASES_PASSWORD=secret", "LEASES_PROJECT_NAME=cloudfn",
			"NODES_USERNAME=leases", "NODES_PASSWORD=secret", "NODES_PROJECT_NAME=cloudfn",
			"TRUSTEE_USER_ID="+settings.Items[0].Data["TRUSTEE_USER_ID"],
			"SEAL_PUBLIC_KEY="+testkit.SealPublicKey, "SEAL_PRIVATE_KEY="+testkit.SealPrivateKey,
			"CONNECTION_PUBLIC_KEY="+testkit.ConnectionPublicKey, "MANAGED_PUBLIC_KEY="+testkit.ManagedPublicKey,
			"MANAGED_PRIVATE_KEY="+testkit.ManagedPrivateKey,
			"CONNECTION_PRIVATE_KEY="+testkit.ConnectionPrivateKey)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", chapter, err, out)
		}
	}
	token := testkit.Token(t, "demo")
	answers := func(service, path string) {
		t.Helper()
		base := command(t, "kubectl", "-n", other, "get", "ksvc", service, "-o", "jsonpath={.status.url}")
		if answer := reach(t, base, token).Get(t, path); answer.Status != 200 {
			t.Errorf("%s%s: %d %s", service, path, answer.Status, answer.Body)
		}
	}
	run("With kn")
	for _, path := range []string{"/v1/resources", "/v1/servers", "/v1/stats"} {
		answers(strings.TrimPrefix(path, "/v1/"), path)
		answers("gateway", path)
	}
	answers("callbacks", "/v1/callbacks")
	answers("connections", "/v1/connections")
	answers("leases", "/v1/leases")
	answers("managed", "/v1/managed")
	for _, service := range []string{"console", "gateway"} {
		answers(service, "/console/")
	}
	command(t, "kubectl", "-n", other, "wait", "pingsource", "--all", "--for=condition=Ready", "--timeout=60s")
	command(t, "kubectl", "-n", other, "delete", "ksvc", "resources", "--wait=true")
	run("With func")
	answers("resources", "/v1/resources")
}
