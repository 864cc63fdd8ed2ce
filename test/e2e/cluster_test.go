//go:build e2e

// Package e2e holds the tests of cloudfn on a real Knative: what only a cluster can show. `make e2e` brings up what
// they need. They run one by one, because they share the functions that TestMain deploys.
package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const namespace = "cloudfn"

// What scripts/e2e says of the cluster.
var (
	ingress     = os.Getenv("CLUSTER_INGRESS")  // URL at which every Knative host is served
	host        = os.Getenv("CLUSTER_HOST")     // address at which pods reach this machine
	databaseURL = os.Getenv("E2E_DATABASE_URL") // the functions' database, as its owner, from here
	image       = os.Getenv("IMAGE")
	helloImage  = os.Getenv("HELLO_IMAGE")
)

func TestMain(m *testing.M) {
	for _, name := range []string{
		"KUBECONFIG", "CLUSTER_INGRESS", "CLUSTER_HOST", "E2E_DATABASE_URL", "E2E_OVERLAY", "IMAGE", "HELLO_IMAGE",
	} {
		if os.Getenv(name) == "" {
			fmt.Fprintf(os.Stderr, "e2e: %s is not set: run make e2e\n", name)
			os.Exit(2)
		}
	}
	if err := deploy(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// deploy puts everything on the cluster as a user does, and before it what the SinkBinding of the overlay leads to.
func deploy() error {
	steps := [][]string{
		{"sh", "-c", "kubectl create namespace " + namespace + " --dry-run=client -o yaml | kubectl apply -f -"},
		{
			"kn", "service", "apply", "sink", "-n", namespace, "--image", helloImage, "--cluster-local",
			"--scale", "1..1",
			"--user", "65532", "--security-context", "strict",
		},
		{"env", "OVERLAY=" + os.Getenv("E2E_OVERLAY"), filepath.Join(testkit.Root(), "scripts", "deploy"), "up"},
	}
	for _, step := range steps {
		cmd := exec.Command(step[0], step[1:]...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = testkit.Root(), os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(step, " "), err)
		}
	}
	return nil
}

// command runs a command line tool and gives what it prints; the test ends when it fails.
func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := try(name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return out
}

func try(name string, args ...string) (string, error) {
	var errs bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errs.Bytes())
	}
	return strings.TrimSpace(string(out)), err
}

func kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return command(t, "kubectl", append([]string{"-n", namespace}, args...)...)
}

// kn runs Knative's own command line on a Service.
func kn(t testing.TB, args ...string) {
	t.Helper()
	command(t, "kn", append([]string{"-n", namespace}, args...)...)
}

// get decodes an object, or a list of them.
func get[T any](t testing.TB, args ...string) T {
	t.Helper()
	var into T
	out := kubectl(t, append(append([]string{"get"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &into); err != nil {
		t.Fatal(err)
	}
	return into
}

// apply makes or changes an object.
func apply(t testing.TB, object any) {
	t.Helper()
	document, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("kubectl", "apply", "-n", namespace, "-f", "-")
	cmd.Stdin = bytes.NewReader(document)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v: %s", err, out)
	}
}

// client calls a Knative Service through the ingress, as someone outside of the cluster.
func client(t testing.TB, service, token string) *testkit.Client {
	t.Helper()
	return reach(t, kubectl(t, "get", "ksvc", service, "-o", "jsonpath={.status.url}"), token)
}

// reach waits until the ingress serves the URL: it may answer 404 for a moment after the route is ready.
func reach(t testing.TB, base, token string) *testkit.Client {
	t.Helper()
	front, err := url.Parse(ingress)
	if err != nil {
		t.Fatal(err)
	}
	via := front.Host
	if front.Port() == "" {
		via = net.JoinHostPort(front.Host, "80")
	}
	c := &testkit.Client{URL: base, Token: token, Via: via}
	testkit.Eventually(t, time.Minute, base+" is served", func() bool {
		status, err := c.Status("/healthz")
		return err == nil && status == http.StatusOK
	})
	return c
}

// clone deploys a function under another name, with changes, and removes it after the test.
func clone(t testing.TB, function, name string, annotations map[string]string, env ...string) {
	t.Helper()
	service := get[map[string]any](t, "ksvc", function)
	template := at(service, "spec", "template")
	if at(template, "metadata", "annotations") == nil {
		at(template, "metadata")["annotations"] = map[string]any{}
	}
	for k, v := range annotations {
		at(template, "metadata", "annotations")[k] = v
	}
	container := template["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
	list := container["env"].([]any)
	for i := 0; i+1 < len(env); i += 2 {
		list = slices.DeleteFunc(list, func(v any) bool { return v.(map[string]any)["name"] == env[i] })
		list = append(list, map[string]any{"name": env[i], "value": env[i+1]})
	}
	container["env"] = list
	delete(template["metadata"].(map[string]any), "creationTimestamp")
	labels, _ := service["metadata"].(map[string]any)["labels"].(map[string]any)
	labels = maps.Clone(labels)
	delete(labels, "app.kubernetes.io/part-of")
	apply(t, map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service",
		"metadata": map[string]any{"name": name, "labels": labels},
		"spec":     map[string]any{"template": template},
	})
	t.Cleanup(func() { _, _ = try("kubectl", "-n", namespace, "delete", "ksvc", name, "--wait=true") })
	kubectl(t, "wait", "ksvc", name, "--for=condition=Ready", "--timeout=180s")
}

// at walks into nested objects.
func at(object map[string]any, path ...string) map[string]any {
	for _, name := range path {
		object, _ = object[name].(map[string]any)
	}
	return object
}

// podList has the fields of pods that tests read.
type podList struct {
	Items []pod
}

type pod struct {
	Metadata struct{ Name, UID, DeletionTimestamp string }
	Spec     struct {
		AutomountServiceAccountToken *bool
		Volumes                      []map[string]any
		Containers                   []container
	}
	Status struct {
		Conditions []struct{ Type, Status string }
	}
}

type container struct {
	Name            string
	EnvFrom         []struct{ SecretRef struct{ Name string } }
	SecurityContext map[string]any
	LivenessProbe   map[string]any
}

// serves reports whether the pod is ready, and not ending.
func (p pod) serves() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return p.Metadata.DeletionTimestamp == ""
		}
	}
	return false
}

// pods are a Service's, but for those that are ending. It may be called from any goroutine.
func pods(service string) (list []pod, err error) {
	out, err := try("kubectl", "-n", namespace, "get", "pods", "-l", "serving.knative.dev/service="+service, "-o",
		"json")
	if err != nil {
		return nil, err
	}
	var found podList
	err = json.Unmarshal([]byte(out), &found)
	for _, p := range found.Items {
		if p.Metadata.DeletionTimestamp == "" {
			list = append(list, p)
		}
	}
	return list, err
}

// ready counts the pods of a Service that serve.
func ready(service string) (n int) {
	list, _ := pods(service)
	for _, p := range list {
		if p.serves() {
			n++
		}
	}
	return n
}

// toZero waits until no pod of the Services is left that takes requests; those that are ending take none.
func toZero(t testing.TB, services ...string) {
	t.Helper()
	for _, s := range services {
		testkit.Eventually(t, 3*time.Minute, s+" is at zero", func() bool {
			list, err := pods(s)
			return err == nil && len(list) == 0
		})
	}
}
