package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/documents"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/managed"
)

const files = `kind: VirtualMachine
name: web
flavor: small
labels: {app: web}
spec: {volumes: [data]}
---
kind: Volume
name: data
spec: {size_gb: 20}
---
kind: ResourceFlavor
name: small
for_kind: VirtualMachine
spec: {flavor: m1.tiny, image: cirros}
`

// service is an API that refuses what a test names. The real one refuses a change after its dry run only when someone
// acts in between.
type service struct {
	refused map[string]bool // by method and URL
	calls   []string
	confirm func(context.Context, string) (bool, error) // at a terminal
	bodies  map[string]string                           // of the last request, by method and URL
	matches map[string]string                           // If-Match or If-None-Match, by method and URL
}

func (s *service) serve(w http.ResponseWriter, r *http.Request) {
	call := r.Method + " " + r.URL.RequestURI()
	s.calls = append(s.calls, call)
	var body json.RawMessage
	_ = json.NewDecoder(r.Body).Decode(&body)
	s.bodies[call] = string(body)
	if s.matches != nil {
		s.matches[call] = r.Header.Get("If-Match") + r.Header.Get("If-None-Match")
	}
	switch {
	case s.refused[call]:
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"detail": "spec.size_gb: must be 1 or more", "code": "invalid"}`)
	case strings.HasPrefix(call, "PUT /v1/flavors/"):
		fmt.Fprint(w, `{"name": "small", "kind": "VirtualMachine", "spec": {"text": "a\nb"}}`)
	case r.URL.Query().Get("dry_run") != "" && strings.Contains(call, "/Volume/"):
		w.Header().Set("ETag", `"3"`)
		fmt.Fprint(w, `{"plan": [{"action": "update", "fields": [{"field": "spec.size_gb", "from": 10, "to": 20}]}]}`)
	case r.URL.Query().Get("dry_run") != "":
		fmt.Fprint(w, `{"plan": [{"action": "create", "fields": [{"field": "spec.text", "to": "a\nb"}]}]}`)
	case strings.HasPrefix(call, "GET /v1/flavors/"):
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"detail": "there is no such flavor", "code": "not_found"}`)
	case r.Method == http.MethodGet:
		fmt.Fprint(w, `{"managed": [
			{"kind": "Volume", "name": "data", "labels": {"app": "web"}, "status": "ready", "spec": {"size_gb": 10}},
			{"kind": "Volume", "name": "old", "labels": {"app": "web"}, "status": "ready", "spec": {"size_gb": 1}},
			{"kind": "Volume", "name": "other", "labels": {"app": "db"}, "status": "ready", "spec": {}},
			{"kind": "Volume", "name": "going", "labels": {"app": "web"}, "status": "deleting", "spec": {}},
			{"kind": "VirtualMachine", "name": "old", "labels": {"app": "web"}, "status": "ready", "spec": {},
				"members": [{"name": "old"}]}],
			"next": null}`)
	default:
		fmt.Fprint(w, `{"revision": 2, "status": "pending"}`)
	}
}

// run runs a command of this package with the files and other flags.
func run(t *testing.T, s *service, args ...string) (out, notes string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte(files), 0o600); err != nil {
		t.Fatal(err)
	}
	s.bodies = map[string]string{}
	a, printed, noted := clitest.New(t, s.serve)
	cmd := cli.Group("cloudfn", "", Apply(a), Diff(a))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	a.Confirm = s.confirm
	cmd.SetArgs(append([]string{args[0], "-f", file}, args[1:]...))
	err = cmd.ExecuteContext(t.Context())
	return printed.String(), noted.String(), err
}

// TestOrder checks all documents first, then declares them in their order, and deletes at the end what needs others
// first.
func TestOrder(t *testing.T) {
	t.Parallel()
	s := &service{}
	out, notes, err := run(t, s, "apply", "--prune", "-l", "app=web")
	if err != nil {
		t.Fatal(err)
	}
	const dry = "?dry_run=true"
	want := []string{
		"PUT /v1/flavors/small" + dry, "GET /v1/flavors/small",
		"PUT /v1/managed/Volume/data" + dry, "PUT /v1/managed/VirtualMachine/web" + dry,
		"GET /v1/managed?label=app%3Dweb&limit=1000",
		"PUT /v1/flavors/small", "PUT /v1/managed/Volume/data", "PUT /v1/managed/VirtualMachine/web",
		"DELETE /v1/managed/VirtualMachine/old", "DELETE /v1/managed/Volume/old",
	}
	if diff := cmp.Diff(want, s.calls); diff != "" {
		t.Error(diff)
	}
	// A dry run knows no flavor that is not declared yet.
	if got := s.bodies[want[3]]; got != `{"labels":{"app":"web"},"spec":{"flavor":"m1.tiny","image":"cirros",`+
		`"volumes":["data"]}}` {
		t.Errorf("the dry run is of %s", got)
	}
	if got := s.bodies[want[7]]; got != `{"flavor":"small","labels":{"app":"web"},"spec":{"volumes":["data"]}}` {
		t.Errorf("it declares %s", got)
	}
	const printed = `KIND            NAME   RESULT   REVISION  STATUS
ResourceFlavor  small  created  -         -
Volume          data   updated  2         pending
VirtualMachine  web    created  2         pending
VirtualMachine  old    deleted  -         -
Volume          old    deleted  -         -
`
	if diff := cmp.Diff(printed, out); diff != "" {
		t.Error(diff)
	}
	const warning = "document 2: Volume/data lacks the label app=web, so that --prune will never delete it"
	if !strings.Contains(notes, warning) {
		t.Errorf("the notes are %s", notes)
	}
}

// TestDryRun shows the plan and changes nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	s := &service{}
	out, notes, err := run(t, s, "apply", "--dry-run", "--prune", "-l", "app=web")
	const want = `ACTION  KIND            NAME   FIELDS
create  ResourceFlavor  small  for_kind: VirtualMachine, spec.text: "a\nb"
update  Volume          data   spec.size_gb: 10 -> 20
create  VirtualMachine  web    spec.text: "a\nb"
delete  VirtualMachine  old    -
delete  Volume          old    spec.size_gb: 1 -> (none)
`
	if diff := cmp.Diff(want, out); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if !strings.Contains(notes, "VirtualMachine/old: deletes 1 object: old\n") {
		t.Errorf("the notes are %q", notes)
	}
	for _, call := range s.calls {
		if !strings.Contains(call, "dry_run=true") && !strings.HasPrefix(call, "GET ") {
			t.Errorf("a dry run calls %s", call)
		}
	}
}

// TestDiff shows what is removed and added, and fails when there is something.
func TestDiff(t *testing.T) {
	t.Parallel()
	out, _, err := run(t, &service{}, "diff")
	const want = `ResourceFlavor/small (create)
+ for_kind: VirtualMachine
+ spec.text: |
+     a
+     b
Volume/data (update)
- spec.size_gb: 10
+ spec.size_gb: 20
VirtualMachine/web (create)
+ spec.text: |
+     a
+     b
`
	if diff := cmp.Diff(want, out); diff != "" || code(err) != exit.Failed {
		t.Error(diff, err)
	}
	refused := &service{refused: map[string]bool{"PUT /v1/managed/Volume/data?dry_run=true": true}}
	if _, _, err := run(t, refused, "diff"); code(err) != exit.Usage {
		t.Errorf("an error ends it with %v", err)
	}
}

func code(err error) int {
	a := &cli.App{}
	a.Begin()
	if err == nil {
		return exit.Done
	}
	return a.Code(err)
}

// TestWrongDocument names the file, the document and the field, and nothing is changed.
func TestWrongDocument(t *testing.T) {
	t.Parallel()
	s := &service{refused: map[string]bool{"PUT /v1/managed/Volume/data?dry_run=true": true}}
	_, _, err := run(t, s, "apply")
	const want = "web.yaml: document 2: spec.size_gb: must be 1 or more. Nothing was changed"
	if code(err) != exit.Usage || !strings.Contains(err.Error(), want) {
		t.Errorf("it ends with %v", err)
	}
	if len(s.calls) != 4 {
		t.Errorf("it calls %s", s.calls)
	}
}

// TestFailure goes on with the other documents, deletes nothing, and fails.
func TestFailure(t *testing.T) {
	t.Parallel()
	s := &service{refused: map[string]bool{"PUT /v1/managed/Volume/data": true}}
	out, _, err := run(t, s, "apply", "--prune", "-l", "app=web")
	if code(err) != exit.Usage || !strings.Contains(err.Error(), "document 2: spec.size_gb") {
		t.Errorf("it ends with %v", err)
	}
	if !strings.Contains(out, "VirtualMachine  web    created") || strings.Contains(out, "deleted") {
		t.Errorf("it prints %s", out)
	}
}

// TestPruneNeedsLabel refuses to delete everything that is in no document.
func TestPruneNeedsLabel(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--prune":         "--prune needs --label KEY=VALUE",
		"-l app=web":      "--label requires --prune",
		"--prune -l app":  `--label is "app": it must be KEY=VALUE`,
		"--prune -l app=": `--label is "app=": it must be KEY=VALUE`,
	} {
		s := &service{}
		_, _, err := run(t, s, append([]string{"apply"}, strings.Fields(args)...)...)
		if code(err) != exit.Usage || !strings.Contains(err.Error(), want) || len(s.calls) > 0 {
			t.Errorf("%s ends with %v after %s", args, err, s.calls)
		}
	}
}

// TestWait waits until what is declared is ready and what is pruned is deleted.
func TestWait(t *testing.T) {
	t.Parallel()
	began := time.Now()
	s := &waited{}
	s.bodies = map[string]string{}
	file := filepath.Join(t.TempDir(), "data.yaml")
	if err := os.WriteFile(file, []byte("kind: Volume\nname: data\nlabels: {app: web}"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, out, notes := clitest.New(t, s.serve)
	cmd := cli.Group("cloudfn", "", Apply(a))
	cmd.SetArgs([]string{"apply", "-f", file, "--wait", "--timeout", "1m"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "Volume  data  updated  2         ready") {
		t.Errorf("it prints %s", out)
	}
	for _, want := range []string{"Volume/data  updating  resizing", "Volume/data  ready"} {
		if !strings.Contains(notes.String(), want) {
			t.Errorf("the notes lack %q:\n%s\nafter %s", want, notes, time.Since(began))
		}
	}
}

// waited is ready with the declared revision at the third poll.
type waited struct {
	service

	polls int
}

func (s *waited) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		s.service.serve(w, r)
		return
	}
	const answer = `{"kind": "Volume", "name": "data", "revision": 2, "observed_revision": %d, "status": "%s",
		"status_reason": "%s"}`
	switch s.polls++; s.polls {
	case 1:
		fmt.Fprintf(w, answer, 1, "ready", "")
	case 2:
		fmt.Fprintf(w, answer, 1, "updating", "resizing")
	default:
		fmt.Fprintf(w, answer, 2, "ready", "")
	}
}

// TestConfirm shows the changes at a terminal, and makes them after a yes, or with --yes without a question.
func TestConfirm(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		isWanted, isApplied bool
		questions           int
		args                string
	}{
		"yes": {true, true, 1, "apply"}, "no": {false, false, 1, "apply"}, "sure": {false, true, 0, "apply --yes"},
		"dry": {false, false, 0, "apply --dry-run"},
	} {
		questions := 0
		s := &service{confirm: func(_ context.Context, question string) (bool, error) {
			questions++
			if question != "Make 3 changes?" {
				t.Errorf("it asks %q", question)
			}
			return row.isWanted, nil
		}}
		out, notes, err := run(t, s, strings.Fields(row.args)...)
		isApplied := slices.Contains(s.calls, "PUT /v1/managed/Volume/data")
		if isApplied != row.isApplied || questions != row.questions ||
			(row.questions == 1 && !row.isWanted) != (err != nil) {
			t.Errorf("%s: it asks %d times, calls %s, and ends with %v", name, questions, s.calls, err)
		}
		isNoted := strings.Contains(notes, "spec.size_gb: 10 -> 20")
		if questions > 0 && !isNoted || strings.Contains(out, "->") == (name != "dry") {
			t.Errorf("%s: it prints %s, and notes %s", name, out, notes)
		}
	}
}

// TestPlannedVersion: what others have changed or made since the plan is not overwritten.
func TestPlannedVersion(t *testing.T) {
	t.Parallel()
	s := &service{matches: map[string]string{}}
	if _, _, err := run(t, s, "apply"); err != nil {
		t.Fatal(err)
	}
	for call, want := range map[string]string{
		"PUT /v1/managed/Volume/data": `"3"`, "PUT /v1/managed/VirtualMachine/web": "*", "PUT /v1/flavors/small": "*",
	} {
		if got := s.matches[call]; got != want {
			t.Errorf("%s expects %q, want %q", call, got, want)
		}
	}
}

// TestMissing refuses what a document names and nothing has, unless it is declared beside it.
func TestMissing(t *testing.T) {
	t.Parallel()
	kind := "Configmap"
	all := []documents.Document{{Kind: kind, Name: "beside"}, {Kind: "Volume", Name: "data"}}
	for want, missing := range map[string][]api.PlanMissing{
		"":                         {{Field: "spec.configmaps[0]", Kind: &kind, Name: "beside"}},
		"spec.configmaps[1]: none": {{Field: "spec.configmaps[1]", Kind: &kind, Name: "data", Detail: "none"}},
		"spec.flavor: no flavor":   {{Field: "spec.flavor", Name: "beside", Detail: "no flavor"}},
	} {
		got := ""
		if err := missingIn(managed.Change{Missing: missing}, all); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
