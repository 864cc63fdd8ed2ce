//go:build e2e

package e2e

import (
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestPods checks of every function's pods what the manifests promise: not root, nothing to write to, no token of a
// service account, and no secret but the ones that its function needs. No secret and no token is in a pod's log or in
// the database. An event function rejects events that lack the key.
func TestPods(t *testing.T) {
	holds := map[string][]string{"gateway": nil}
	for _, f := range testkit.Describe(t).Functions {
		holds[f.Name] = nil
		for _, secret := range f.Secrets {
			holds[f.Name] = append(holds[f.Name], "cloudfn-"+secret)
		}
		slices.Sort(holds[f.Name])
	}
	events := eventFunctions(t)
	for function := range awake(t, events) {
		want, known := holds[function]
		if !known {
			t.Errorf("%s is deployed, and no function of that name is declared", function)
			continue
		}
		t.Run(function, func(t *testing.T) {
			list, err := pods(function)
			if err != nil || len(list) == 0 {
				t.Fatalf("it has the pods %v: %v", list, err)
			}
			for _, pod := range list {
				if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
					t.Error("it gets a service account's token")
				}
				for _, volume := range pod.Spec.Volumes {
					if volume["secret"] != nil || volume["projected"] != nil || volume["hostPath"] != nil {
						t.Errorf("it has the volume %v", volume)
					}
				}
				for _, c := range pod.Spec.Containers {
					context := c.SecurityContext
					if context["runAsNonRoot"] != true || context["readOnlyRootFilesystem"] != true ||
						context["allowPrivilegeEscalation"] != false {
						t.Errorf("container %s runs with %v", c.Name, context)
					}
					if c.Name != "user-container" {
						continue
					}
					if c.LivenessProbe != nil {
						t.Errorf("it has a liveness probe: %v", c.LivenessProbe)
					}
					var secrets []string
					for _, from := range c.EnvFrom {
						if name := from.SecretRef.Name; name != "" {
							secrets = append(secrets, name[:strings.LastIndex(name, "-")]) // without kustomize's hash
						}
					}
					if slices.Sort(secrets); !slices.Equal(secrets, want) {
						t.Errorf("it holds the secrets %v, want %v", secrets, want)
					}
				}
				status := string(process(t, pod.Metadata.UID))
				if !strings.Contains(status, "\nUid:\t65532\t65532") ||
					!strings.Contains(status, "\nCapEff:\t0000000000000000") ||
					!strings.Contains(status, "\nNoNewPrivs:\t1") {
					t.Errorf("its process is\n%s", status)
				}
			}
			log := logOf(t, function, `"msg":"serving`)
			if slices.Contains(events, function) {
				log = logOf(t, function, "event rejected", "pingsources/"+keyless(function))
			}
			for _, canary := range []string{"e2e-canary", "local-event-key", "sealkey_"} {
				if strings.Contains(log, canary) {
					t.Error("its log shows a secret")
				}
			}
			testkit.NoSecretsIn(t, function, []byte(log))
		})
	}
	testkit.NoSecrets(t, databaseURL)
}

// functions are the deployed Services of ours.
func functions(t testing.TB) []string {
	t.Helper()
	return strings.Fields(kubectl(t, "get", "ksvc", "-l", "app.kubernetes.io/part-of=cloudfn", "-o",
		"jsonpath={.items[*].metadata.name}"))
}

// eventFunctions are those that only an event wakes.
func eventFunctions(t testing.TB) (names []string) {
	t.Helper()
	for _, f := range testkit.Describe(t).Functions {
		if f.Kind == "event" {
			names = append(names, f.Name)
		}
	}
	return names
}

// keyless is the name of a PingSource that wakes a function with events that it rejects: they lack the key.
func keyless(function string) string { return "wake-" + function }

// awake gives one function after the other as soon as it has a pod. Those that only an event wakes are the last, and
// are all woken at the same full minute: a pod with nothing to do does not stay for long.
func awake(t *testing.T, woken []string) iter.Seq[string] {
	t.Helper()
	for _, function := range woken {
		source := keyless(function)
		_, _ = try("kn", "-n", namespace, "source", "ping", "delete", source) // of a run that was interrupted
		kn(t, "source", "ping", "create", source, "--schedule", "* * * * *", "--sink", "ksvc:"+function)
		t.Cleanup(func() { kn(t, "source", "ping", "delete", source) })
	}
	return func(yield func(string) bool) {
		for _, function := range functions(t) {
			if slices.Contains(woken, function) {
				continue
			}
			client(t, function, "")
			if !yield(function) {
				return
			}
		}
		for _, function := range woken {
			testkit.Eventually(t, minutes(2), function+" is awake", func() bool {
				list, err := pods(function) // without those that end
				return err == nil && len(list) > 0 && ready(function) > 0
			})
			if !yield(function) {
				return
			}
		}
	}
}

// process is what the kernel says of the function's process in a pod. It needs no shell in the image: the node is this
// machine.
func process(t testing.TB, uid string) []byte {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		cgroup, _ := os.ReadFile(path)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if strings.Contains(string(cgroup), uid) && strings.HasPrefix(string(line), "/ko-app/functions") {
			status, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "status"))
			return status
		}
	}
	t.Fatalf("no process of pod %s on this machine", uid)
	return nil
}

// logOf is the log of a function's pods, once it has these texts. A pod may end between its listing and its log.
func logOf(t *testing.T, function string, texts ...string) (log string) {
	t.Helper()
	testkit.Eventually(t, minutes(3), "the log of "+function+" has "+strings.Join(texts, " and "), func() bool {
		var err error
		log, err = try("kubectl", "-n", namespace, "logs", "-l", "serving.knative.dev/service="+function,
			"--all-containers", "--tail=-1")
		return err == nil && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(log, text) })
	})
	return log
}

// TestManifestsAreStrictlyValid asks the API server itself: every field known, every webhook content.
func TestManifestsAreStrictlyValid(t *testing.T) {
	for _, overlay := range []string{"local", "production"} {
		rendered := command(t, "kubectl", "kustomize", filepath.Join(testkit.Root(), "knative", "overlays", overlay))
		rendered = strings.ReplaceAll(rendered, "ko://github.com/cloudfn/cloudfn/functions", image)
		// a Job cannot be changed
		rendered = strings.ReplaceAll(rendered, "name: migrate\n", "name: migrate-"+overlay+"\n")
		cmd := exec.Command("kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", "-")
		cmd.Stdin = strings.NewReader(rendered)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", overlay, err, out)
		}
	}
}
