//go:build e2e

package e2e

import (
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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

// TestManifestsAreStrictlyValid has the API server itself check: every field known, every webhook content.
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

// underLoad runs change while 20 clients call servers all the time, and fails the test when any answer failed.
func underLoad(t *testing.T, change func()) {
	t.Helper()
	c := client(t, "servers", testkit.NewProject(t).Token(t))
	stop := make(chan struct{})
	var ids, failed []string
	var running sync.WaitGroup
	running.Go(func() { ids, failed = load(t, c, "/v1/servers?limit=1", 20, 0, stop) })
	func() {
		defer running.Wait()
		defer close(stop)
		time.Sleep(3 * time.Second)
		change()
		time.Sleep(5 * time.Second)
	}()
	noneFailed(t, failed)
	inLog(t, ids)
	fmt.Printf("\n%s: %d answers, %d failed\n", t.Name(), len(ids)+len(failed), len(failed))
}

// latestReady is the revision of servers that was ready last.
func latestReady(t testing.TB) string {
	t.Helper()
	return kubectl(t, "get", "ksvc", "servers", "-o", "jsonpath={.status.latestReadyRevisionName}")
}

// share is what a revision gets of the traffic of servers, in percent.
func share(t testing.TB, revision string) (percent int) {
	t.Helper()
	list := get[struct {
		Status struct {
			Traffic []struct {
				RevisionName string
				Percent      int
			}
		}
	}](t, "ksvc", "servers")
	for _, target := range list.Status.Traffic {
		if target.RevisionName == revision {
			percent += target.Percent
		}
	}
	return percent
}

// TestRollout goes to a new revision in one step, in two halves, and back, and loses no request.
func TestRollout(t *testing.T) {
	old := latestReady(t)
	t.Cleanup(func() { kn(t, "service", "update", "servers", "--traffic", "@latest=100", "--env", "LOG_LEVEL-") })
	underLoad(t, func() {
		kn(t, "service", "update", "servers", "--env", "LOG_LEVEL=INFO")
		now := latestReady(t)
		if now == old || share(t, now) != 100 {
			t.Errorf("revision %s gets %d%%", now, share(t, now))
		}
		kn(t, "service", "update", "servers", "--traffic", old+"=50", "--traffic", "@latest=50")
		time.Sleep(10 * time.Second)
		if share(t, old) != 50 || share(t, now) != 50 {
			t.Errorf("the traffic is %d%% and %d%%", share(t, old), share(t, now))
		}
		for _, revision := range []string{old, now} {
			if n := len(get[podList](t, "pods", "-l", "serving.knative.dev/revision="+revision).Items); n == 0 {
				t.Errorf("revision %s has half of the traffic and no pod", revision)
			}
		}
		kn(t, "service", "update", "servers", "--traffic", old+"=100")
		if share(t, old) != 100 {
			t.Errorf("after the rollback %s gets %d%%", old, share(t, old))
		}
	})
}

// TestBrokenRevision: a mistake in the configuration makes a revision that does not start. It gets no traffic, and kn
// says why.
func TestBrokenRevision(t *testing.T) {
	good := latestReady(t)
	t.Cleanup(func() {
		kn(t, "service", "update", "servers", "--env", "REQUEST_TIMEOUT-")
		if latestReady(t) == good {
			t.Error("the fixed revision is not ready")
		}
	})
	underLoad(t, func() {
		kn(t, "service", "update", "servers", "--env", "REQUEST_TIMEOUT=soon", "--no-wait")
		testkit.Eventually(t, 3*time.Minute, "kn service describe says what is wrong with the new revision",
			func() bool {
				out, _ := try("kn", "-n", namespace, "service", "describe", "servers", "--verbose")
				return strings.Contains(out, `Container failed with: cloudfn: REQUEST_TIMEOUT is "soon"`)
			})
		if share(t, good) != 100 || latestReady(t) != good {
			t.Errorf("revision %s gets %d%%, ready is %s", good, share(t, good), latestReady(t))
		}
	})
}

// TestDependenciesAway: a function starts, and says what is missing, while Postgres or Keystone cannot be reached.
func TestDependenciesAway(t *testing.T) {
	token := testkit.Token(t, "demo")
	for name, env := range map[string][]string{
		"postgres": {"DATABASE_URL", "postgres://nobody@" + host + ":9/none"},
		"keystone": {"OS_AUTH_URL", "http://" + host + ":9/v3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()                                      // both mostly wait for Knative
			clone(t, "servers", "without-"+name, nil, env...) // waits until it is Ready
			c := client(t, "without-"+name, token)
			if answer := c.Get(t, "/v1/servers"); answer.Status != 503 || answer.Header.Get("Retry-After") == "" {
				t.Errorf("got %d %v %s", answer.Status, answer.Header, answer.Body)
			}
		})
	}
}
