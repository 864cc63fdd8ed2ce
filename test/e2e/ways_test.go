//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// block is the first shell block of a page after a text.
func block(t testing.TB, page, after string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testkit.Root(), page))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n"+after)
	_, rest, found := strings.Cut(rest, "\n```sh\n")
	commands, _, ended := strings.Cut(rest, "\n```\n")
	if !found || !ended {
		t.Fatalf("%s has no shell block after %q", page, after)
	}
	return commands
}

// TestOtherWays runs the READMEs' commands for kn and for func, word by word, in a namespace of their own.
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
	remove := func() {
		// The Services first: a namespace with pods waits for half of their grace period, which is minutes.
		_, _ = try("kubectl", "-n", other, "delete", "ksvc", "--all")
		_, _ = try("kubectl", "-n", other, "wait", "pods", "--all", "--for=delete", "--timeout=120s")
		_, _ = try("kubectl", "delete", "namespace", other)
	}
	remove() // of a run that was interrupted
	t.Cleanup(remove)
	settings := get[struct {
		Items []struct{ Data map[string]string }
	}](t, "configmap", "-l", "app.kubernetes.io/part-of=cloudfn")
	run := func(commands string) {
		t.Helper()
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", commands)
		cmd.Dir = testkit.Root()
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "NAMESPACE="+other, "IMAGE="+image,
			"EVENT_KEY=by-hand",
			"DATABASE_URL=postgres://postgres:e2e-canary@"+host+":5432/cloudfn_e2e",
			"OS_AUTH_URL="+settings.Items[0].Data["OS_AUTH_URL"],
			"OS_INTERFACE="+settings.Items[0].Data["OS_INTERFACE"],
			"TRUSTED_PROXIES="+settings.Items[0].Data["TRUSTED_PROXIES"],
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
			t.Fatalf("%s: %v\n%s", commands, err, out)
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
	run(block(t, "knative/README.md", "### By hand\n"))
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
	command(t, "kubectl", "-n", other, "delete", "ksvc", "--all", "--wait=true")
	run(block(t, "knative/README.md", "## With func\n"))
	listed := command(t, "func", "list", "--namespace", other, "--output", "plain")
	for _, f := range testkit.Describe(t).Functions {
		if f.Kind != "http" {
			continue
		}
		if !strings.Contains(listed, f.Name) {
			t.Errorf("func list lacks %s:\n%s", f.Name, listed)
		}
		described := command(t, "func", "describe", f.Name, "--namespace", other, "--output", "url")
		if !strings.Contains(described, f.Name+"."+other) {
			t.Errorf("func describe %s prints %s", f.Name, described)
		}
		answers(f.Name, "/v1/status")
	}
	answers("resources", "/v1/resources")
	command(t, "func", "delete", "launch", "--namespace", other)
	testkit.Eventually(t, time.Minute, "func has deleted launch", func() bool {
		_, err := try("kubectl", "-n", other, "get", "ksvc", "launch")
		return err != nil
	})
	command(t, "kubectl", "-n", other, "delete", "ksvc", "--all", "--wait=true")
	// The host is reached through the ingress, because only pods resolve it.
	create, _, found := strings.Cut(block(t, "README.md", "One function with `kn`"), "\ncurl ")
	if !found {
		t.Fatal("README.md does not call its function")
	}
	// Pods reach only one interface of the sandbox; the command is for a cloud whose public one they reach.
	create = strings.Replace(create, "--env OS_AUTH_URL", `--env OS_INTERFACE="$OS_INTERFACE" --env OS_AUTH_URL`, 1)
	run(create)
	answers("resources", "/v1/resources")
}

// TestDeployWithKn deploys over what kubectl has deployed, with kn twice and with kubectl twice: the Services and the
// PingSources stay the same, but for what kn itself adds, and the functions answer.
func TestDeployWithKn(t *testing.T) {
	objects := func() map[string]any {
		found := map[string]any{}
		for _, kind := range []string{"ksvc", "pingsource"} {
			list := get[struct{ Items []map[string]any }](t, kind, "-l", "app.kubernetes.io/part-of=cloudfn")
			for _, o := range list.Items {
				metadata, spec := at(o, "metadata"), at(o, "spec")
				delete(spec, "timezone")
				delete(at(spec, "sink", "ref"), "namespace") // that of the PingSource, with and without it
				delete(at(spec, "template", "metadata", "annotations"), "client.knative.dev/updateTimestamp")
				delete(at(spec, "template", "metadata"), "creationTimestamp")
				found[kind+" "+metadata["name"].(string)] = map[string]any{"labels": metadata["labels"], "spec": spec}
			}
		}
		return found
	}
	before := objects()
	for _, with := range []string{"kn", "kn", "kubectl", "kubectl"} {
		cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "deploy"), "up")
		cmd.Env = append(os.Environ(), "WITH="+with, "OVERLAY="+os.Getenv("E2E_OVERLAY"))
		cmd.Dir = testkit.Root()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	after := objects()
	for name := range before {
		if !reflect.DeepEqual(before[name], after[name]) {
			t.Errorf("%s was\n%v, and with kn it is\n%v", name, before[name], after[name])
		}
	}
	if len(after) != len(before) {
		t.Errorf("there were %d objects, and now there are %d", len(before), len(after))
	}
	token := testkit.Token(t, "demo")
	for _, path := range []string{"/v1/resources", "/v1/servers", "/v1/stats"} {
		if a := client(t, strings.TrimPrefix(path, "/v1/"), token).Get(t, path); a.Status != http.StatusOK {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
}
