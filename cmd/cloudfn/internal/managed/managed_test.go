package managed

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

var minute = cli.Wait{IsOn: true, Limit: time.Minute}

// TestReferences reads names with their kinds in both forms.
func TestReferences(t *testing.T) {
	t.Parallel()
	for args, want := range map[string][]string{
		"volume data logs":        {"Volume/data", "Volume/logs"},
		"Volume/data secret/key":  {"Volume/data", "Secret/key"},
		"VIRTUALMACHINE web":      {"VirtualMachine/web"},
		"Volume":                  nil,
		"Volumes data":            nil,
		"Volume/data Volumes/all": nil,
	} {
		all, err := references(strings.Fields(args))
		if want == nil {
			if a, _, _ := clitest.New(t, nil); a.Code(err) != exit.Usage {
				t.Errorf("%s gives %v", args, err)
			}
			continue
		}
		if diff := cmp.Diff(want, names(all)); diff != "" || err != nil {
			t.Errorf("%s: %s, %v", args, diff, err)
		}
	}
}

// TestMerged changes fields of an object. An empty value removes one, and is sent where none is shown.
func TestMerged(t *testing.T) {
	t.Parallel()
	before := map[string]any{"count": 1, "key_name": "k", "image": "cirros"}
	got := merged(before, map[string]any{"count": 2, "key_name": "", "image": nil, "user_data": ""})
	if diff := cmp.Diff(map[string]any{"count": 2, "user_data": ""}, got); diff != "" {
		t.Error(diff)
	}
	if before["count"] != 1 {
		t.Error("it changes what it was given")
	}
}

// TestAwaitError waits a minute for a resource in error, which cloudfn tries again, and then fails.
func TestAwaitError(t *testing.T) {
	t.Parallel()
	a, _, notes := clitest.New(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"kind": "Volume", "name": "data", "revision": 1, "status": "error", "status_reason": "no room"}`)
	})
	now := time.Now()
	a.Now = func() time.Time { now = now.Add(errorTime / 3); return now }
	target := &Target{Reference: Reference{"Volume", "data"}, Revision: 1}
	err := Await(t.Context(), a, minute, []*Target{target})
	if a.Code(err) != exit.Failed || err.Error() != "Volume/data is error: no room" {
		t.Errorf("it ends with %v", err)
	}
	if !strings.Contains(notes.String(), "Volume/data  error  no room") {
		t.Errorf("it shows %s", notes)
	}
}

// TestAwaitGone is done when what is deleted no longer exists, and fails when what is declared is.
func TestAwaitGone(t *testing.T) {
	t.Parallel()
	a, _, _ := clitest.New(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"detail": "there is no Volume data", "code": "not_found"}`)
	})
	data := Reference{"Volume", "data"}
	if err := Await(t.Context(), a, minute, []*Target{{Reference: data}}); err != nil {
		t.Error(err)
	}
	err := Await(t.Context(), a, minute, []*Target{{Reference: data, Revision: 1}})
	if err == nil || err.Error() != "Volume/data is gone" {
		t.Errorf("it ends with %v", err)
	}
}

// TestAwaitTimeout says what is not ready, and that cloudfn goes on.
func TestAwaitTimeout(t *testing.T) {
	t.Parallel()
	a, _, _ := clitest.New(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"managed": [{"kind": "Volume", "name": "a", "status": "creating"},
			{"kind": "Volume", "name": "b", "status": "pending", "status_reason": "it waits"}], "next": null}`)
	})
	err := Await(t.Context(), a, cli.Wait{IsOn: true, Limit: 50 * time.Millisecond}, []*Target{
		{Reference: Reference{"Volume", "b"}, Revision: 1}, {Reference: Reference{"Volume", "a"}, Revision: 1},
	})
	const want = "not done within 50ms, and it goes on: Volume/b is pending: it waits, and 1 more"
	if a.Code(err) != exit.Unavailable || err.Error() != want {
		t.Errorf("it ends with %v", err)
	}
}

// TestAwaitFollowers waits until the servers that a changed Configmap replaces have its files: also those of a
// resource that is declared beside it, and that was ready before the Configmap was.
func TestAwaitFollowers(t *testing.T) {
	t.Parallel()
	const deployment = "VirtualMachineDeployment"
	one := func(name, status, updated, configmap, update string) string {
		return fmt.Sprintf(`{"kind": %q, "name": %q, "revision": 1, "observed_revision": 1, "status": %q, "conditions":
			[{"type": "Updated", "status": %q}], "spec": {"configmaps": [%q], "update": %q}}`, deployment, name, status,
			updated, configmap, update)
	}
	lists := 0
	a, _, notes := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
		switch path := strings.TrimPrefix(r.URL.Path, "/v1/managed/"); path {
		case "Configmap/files":
			fmt.Fprint(w, `{"kind": "Configmap", "name": "files", "revision": 2, "observed_revision": 2, "status": "ready"}`)
		case deployment + "/web": // no pass has observed the change yet
			fmt.Fprint(w, one("web", "ready", "True", "files", "replace"))
		case deployment:
			status, updated := "updating", "False"
			if lists++; lists > 1 {
				status, updated = "ready", "True"
			}
			drifted := "degraded" // by what is not ours to wait for
			if lists == 1 {
				drifted = status
			}
			fmt.Fprintf(w, `{"managed": [%s, %s, %s, %s], "next": null}`,
				one("web", status, updated, "files", "replace"), one("drifted", drifted, updated, "files", "replace"),
				one("stays", "updating", "False", "files", "in_place"),
				one("other", "updating", "False", "more", "replace"))
		default:
			fmt.Fprint(w, `{"managed": [], "next": null}`)
		}
	})
	err := Await(t.Context(), a, minute, []*Target{
		{Reference: Reference{deployment, "web"}, Revision: 1}, {Reference: Reference{"Configmap", "files"}, Revision: 2},
	})
	if err != nil || lists < 2 {
		t.Errorf("it ends with %v after %d lists, and shows %s", err, lists, notes)
	}
}

// TestAwaitBalancers waits until the load balancers of a deployment have its new servers: also of one that is declared
// beside it, and was ready before. One that was never real, or balances others, is not waited for.
func TestAwaitBalancers(t *testing.T) {
	t.Parallel()
	const deployment, balancer = "VirtualMachineDeployment", "Loadbalancer"
	one := func(name, updated string, observed int, listener string) string {
		return fmt.Sprintf(`{"kind": %q, "name": %q, "revision": 1, "observed_revision": %d, "status": "ready", "conditions":
			[{"type": "Updated", "status": %q}], "spec": {"listeners": [{"port": 80, %s}]}}`, balancer, name, observed,
			updated, listener)
	}
	const ofWeb = `"deployment": "web"`
	lists := 0
	a, _, notes := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
		switch path := strings.TrimPrefix(r.URL.Path, "/v1/managed/"); path {
		case deployment + "/web":
			fmt.Fprint(w, `{"kind": "VirtualMachineDeployment", "name": "web", "revision": 2, "observed_revision": 2,
				"status": "ready"}`)
		case balancer + "/front": // before the servers are there
			fmt.Fprint(w, one("front", "True", 1, ofWeb))
		case balancer:
			updated := "False"
			if lists++; lists > 2 {
				updated = "True"
			}
			fmt.Fprintf(w, `{"managed": [%s, %s, %s, %s], "next": null}`, one("front", updated, 1, ofWeb),
				one("also", updated, 1, ofWeb), one("new", "False", 0, ofWeb), one("other", "False", 1, `"machines": ["web"]`))
		default:
			fmt.Fprint(w, `{"managed": [], "next": null}`)
		}
	})
	err := Await(t.Context(), a, minute, []*Target{
		{Reference: Reference{balancer, "front"}, Revision: 1}, {Reference: Reference{deployment, "web"}, Revision: 2},
	})
	if text := notes.String(); err != nil || lists < 3 || !strings.Contains(text, "Loadbalancer/also") ||
		strings.Contains(text, "new") || strings.Contains(text, "other") {
		t.Errorf("it ends with %v after %d lists, and shows %s", err, lists, notes)
	}
}

// TestChange has the largest action of a plan, and its fields in short lines.
func TestChange(t *testing.T) {
	t.Parallel()
	c := Change{Action: ActionNone}
	c.add(api.ManagedPlan{Action: "update", Fields: []api.PlanField{{Field: "spec.count", From: 5.0, To: 8.0}}})
	c.add(api.ManagedPlan{Action: "replace", Fields: []api.PlanField{
		{Field: "spec.data", From: strings.Repeat("x", 100)}, {Field: "labels", To: map[string]any{"a": "b\n"}},
	}})
	c.add(api.ManagedPlan{Action: "none"})
	want := "spec.count: 5 -> 8, spec.data: " + strings.Repeat("x", longest) + "... -> (none), labels: {\"a\":\"b\\n\"}"
	if c.Action != ActionReplace || c.fields() != want {
		t.Errorf("it is %s %s\nwant %s", c.Action, c.fields(), want)
	}
}

// TestScale changes the count of a deployment and nothing else, for the version that it has read.
func TestScale(t *testing.T) {
	t.Parallel()
	var sent, match string
	a, _, _ := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			body, _ := io.ReadAll(r.Body)
			sent, match = string(body), r.Header.Get("If-Match")
		}
		w.Header().Set("ETag", `"7"`)
		fmt.Fprint(w, `{"kind": "VirtualMachineDeployment", "name": "web", "spec": {"count": 3, "flavor": "m1.tiny"},
			"labels": {"app": "web"}, "repair": "auto"}`)
	})
	run := func(args string) error {
		cmd := scale(a)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		return cmd.ExecuteContext(t.Context())
	}
	if err := run("VirtualMachineDeployment web 8"); err != nil {
		t.Fatal(err)
	}
	const want = `{"labels":{"app":"web"},"repair":"auto","spec":{"count":8,"flavor":"m1.tiny"}}`
	if sent != want || match != `"7"` {
		t.Errorf("it sends %s if it matches %s", sent, match)
	}
	sent = ""
	for _, args := range []string{
		"VirtualMachineDeployment web", "VirtualMachineDeployment web -- -1", "VirtualMachineDeployment web many",
		"VirtualMachine web 2",
	} {
		if err := run(args); a.Code(err) != exit.Usage || sent != "" {
			t.Errorf("%s ends with %v, and sends %s", args, err, sent)
		}
	}
}

// TestDiff shows the differences of the resource and of each member, which it names, and ends with the codes of kubectl
// diff.
func TestDiff(t *testing.T) {
	t.Parallel()
	const member, old, renewed = "3f8fad5b-d9cb-469f-a165-70867728950e", "11111111-1111-4111-8111-111111111111",
		"22222222-2222-4222-8222-222222222222"
	a, out, _ := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.RequestURI() {
		case "/v1/managed/VirtualMachine/web/diff":
			fmt.Fprintf(w, `{"from": 2, "differences": [{"path": "spec.count", "from": 3, "to": 2},
				{"member": %q, "path": "spec.flavor", "from": "m1.tiny", "to": "m1.small"},
				{"member": %q, "path": "exists", "from": true, "to": false}]}`, member, old)
		case "/v1/managed/VirtualMachine/web":
			fmt.Fprintf(w, `{"members": [{"id": %q, "name": "web-0"}, {"id": %q, "name": "web-1"},
				{"id": %q, "name": "web-1"}]}`, member, old, renewed)
		case "/v1/managed/VirtualMachine/web/diff?from=1&to=2":
			fmt.Fprint(w, `{"from": 1, "to": 2, "differences": [{"path": "spec.user_data"}]}`)
		case "/v1/managed/VirtualMachine/same/diff":
			fmt.Fprint(w, `{"from": 1, "differences": []}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"detail": "no such revision", "code": "not_found"}`)
		}
	})
	for args, want := range map[string]struct {
		code int
		text string
	}{
		"VirtualMachine web": {exit.Failed, "VirtualMachine/web: revision 2 -> what is real\n" +
			"- spec.count: 3\n+ spec.count: 2\n" +
			"VirtualMachine/web: revision 2 -> what is real, web-0\n" +
			"- spec.flavor: m1.tiny\n+ spec.flavor: m1.small\n" +
			"VirtualMachine/web: revision 2 -> what is real, web-1 (" + old + ")\n" +
			"- exists: true\n+ exists: false\n"},
		"VirtualMachine/web 1 2": {
			exit.Failed, "VirtualMachine/web: revision 1 -> revision 2\n+ spec.user_data: (secret)\n",
		},
		"VirtualMachine same":    {exit.Done, ""},
		"VirtualMachine web 9":   {exit.NotFound, ""},
		"VirtualMachine web 0":   {exit.Usage, ""},
		"VirtualMachine/web 1 a": {exit.Usage, ""},
	} {
		out.Reset()
		cmd := diff(a)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		err := cmd.ExecuteContext(t.Context())
		code := exit.Done
		if err != nil {
			code = a.Code(err)
		}
		if d := cmp.Diff(want.text, out.String()); d != "" || code != want.code {
			t.Errorf("%s ends with %d, %v, want %d: %s", args, code, err, want.code, d)
		}
	}
}
