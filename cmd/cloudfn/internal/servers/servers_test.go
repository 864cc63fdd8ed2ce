package servers

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestUpdate judges a server by its state at each poll.
func TestUpdate(t *testing.T) {
	t.Parallel()
	const start, stop, reboot, remove, deploy = api.ServerActionActionStart, api.ServerActionActionStop,
		api.ServerActionActionReboot, api.ServerActionActionDelete, api.ServerActionActionDeploy
	for name, c := range map[string]struct {
		action   api.ServerActionAction
		seen     []string // statuses; with a state behind a slash of one that is tracked
		actionID string   // of an action through a connection
		want     string
	}{
		"stopped":                      {action: stop, seen: []string{"ACTIVE", "ACTIVE", "SHUTOFF"}, want: "done"},
		"stopped from error":           {action: stop, seen: []string{"ERROR", "ERROR", "SHUTOFF"}, want: "done"},
		"fell into error":              {action: stop, seen: []string{"ACTIVE", "ERROR"}, want: "nova_fault"},
		"in error from the first poll": {action: start, seen: []string{"ERROR"}, want: "nova_fault"},
		"rebooted":                     {action: reboot, seen: []string{"REBOOT", "ACTIVE"}, want: "done"},
		"rebooted hard from error": {action: reboot, seen: []string{
			"ERROR/error", "ERROR/error",
			"ACTIVE/active",
		}, want: "done"},
		"not started after all": {
			action: start, seen: []string{"SHUTOFF/updating", "SHUTOFF/stopped"},
			want: "conflict",
		},
		"not started, and not tracked":  {action: start, seen: []string{"SHUTOFF", "SHUTOFF"}, want: ""},
		"not seen yet, by a connection": {action: start, seen: []string{"SHUTOFF/stopped"}, actionID: "x", want: ""},
		"deleted":                       {action: remove, seen: []string{"ACTIVE", "DELETED"}, want: "done"},
		"deleted, and can be restored":  {action: remove, seen: []string{"SOFT_DELETED"}, want: "done"},
		"deleted by someone else":       {action: stop, seen: []string{"ACTIVE", "DELETED"}, want: "not_found"},
		"rebuilt, and no agent yet": {
			action: deploy, seen: []string{"REBUILD/updating", "ACTIVE/active"},
			want: "",
		},
		"of no use to wait": {action: stop, seen: []string{"UNKNOWN/unknown"}, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &waiter{result: &result{ActionID: c.actionID}, action: c.action}
			for _, text := range c.seen {
				status, state, tracked := strings.Cut(text, "/")
				s := api.Server{Status: status}
				if tracked {
					s.Instance = &api.ServerInstance{State: api.InstanceState(state)}
				}
				w.update(s)
			}
			got := ""
			if w.isDone {
				got = "done"
			}
			if w.Error != nil {
				got = string(w.Error.Code)
			}
			if got != c.want {
				t.Errorf("it is judged %q, want %q (%+v)", got, c.want, w.result)
			}
		})
	}
}

func listed(names ...string) []api.Item[api.Server] {
	var all []api.Item[api.Server]
	for i, name := range names {
		all = append(all, api.Item[api.Server]{Value: api.Server{
			ID: string(rune('a'+i)) + "-id", Name: name,
			Status: "ACTIVE",
		}})
	}
	return all
}

// TestNames is a name where that is enough for other commands, and else an id.
func TestNames(t *testing.T) {
	t.Parallel()
	all := listed("one", "two", "two", "", "4f8052c0-49f2-4b75-a508-5c4454e37731", "with\x1bescape", "of two words",
		"--flag", "it's", "réseau")
	nameOf := names(all)
	var got []string
	for _, one := range all {
		got = append(got, nameOf(one.Value))
	}
	if want := []string{
		"one", "b-id", "c-id", "d-id", "e-id", "f-id", "g-id", "h-id", "i-id",
		"réseau",
	}; !slices.Equal(got, want) {
		t.Errorf("they are called %q, want %q", got, want)
	}
}

func TestCompletions(t *testing.T) {
	t.Parallel()
	all := listed("one", "two", "two", "three")
	if got, want := completions(all, []string{"d-id"}, ""), []string{
		"one\tactive", "b-id\ttwo active",
		"c-id\ttwo active",
	}; !slices.Equal(got, want) {
		t.Errorf("with nothing typed it offers %q, want %q", got, want)
	}
	if got := completions(all, nil, "a"); !slices.Contains(got, "a-id\tone active") {
		t.Errorf("with something typed it offers %q", got)
	}
}

func TestAge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)
	if got := age(time.Time{}, now); got != "" {
		t.Errorf("an age that is not known is %q", got)
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m",
		47 * time.Hour: "47h", 48 * time.Hour: "2d",
	} {
		if got := age(now.Add(-d), now); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}

// TestGoals: every action leads to a stable state, but those that change none.
func TestGoals(t *testing.T) {
	t.Parallel()
	for _, verb := range domain.Actions() {
		if (domain.ActionRequest{Action: domain.Action(verb)}).After(domain.InstanceActive) == domain.InstanceActive {
			continue
		}
		end, ok := goals[api.ServerActionAction(verb)]
		if !ok || end != domain.InstanceResizing && !slices.Contains(stable, end) {
			t.Errorf("%s ends in %q", verb, end)
		}
	}
}

// TestDeletedWhileResized: Nova confirms a resize before it deletes the server, which is active meanwhile. One that
// stays so was not deleted.
func TestDeletedWhileResized(t *testing.T) {
	t.Parallel()
	w := &waiter{result: &result{}, action: api.ServerActionActionDelete}
	server := api.Server{Status: "ACTIVE", Instance: &api.ServerInstance{State: "active"}}
	if w.update(server); w.isDone || w.Error != nil {
		t.Errorf("it ends with %+v", w.Error)
	}
	w.restsSince = time.Now().Add(-deleteGrace)
	if w.update(server); w.Error == nil || w.Error.Code != api.CodeConflict {
		t.Errorf("after a while it is %+v", w.Error)
	}
}

// TestResizeGoals: a resize is done when it waits for its end, or the cloud has ended it; an end when the server is as
// before.
func TestResizeGoals(t *testing.T) {
	t.Parallel()
	type step struct {
		status, flavor string
		isDone, fails  bool
	}
	for name, tc := range map[string]struct {
		action domain.Action
		steps  []step
	}{
		"waits": {domain.Resize, []step{{"RESIZE", "small", false, false}, {"VERIFY_RESIZE", "large", true, false}}},
		"confirmed by the cloud": {
			domain.Resize, []step{{"RESIZE", "small", false, false}, {"ACTIVE", "large", true, false}},
		},
		"no host": {domain.Resize, []step{{"RESIZE", "small", false, false}, {"ACTIVE", "small", false, true}}},
		"confirm": {
			domain.ConfirmResize, []step{{"VERIFY_RESIZE", "large", false, false}, {"SHUTOFF", "large", true, false}},
		},
		"revert": {
			domain.RevertResize, []step{{"REVERT_RESIZE", "large", false, false}, {"ACTIVE", "small", true, false}},
		},
		"revert fails": {
			domain.RevertResize, []step{{"REVERT_RESIZE", "large", false, false}, {"ERROR", "large", false, true}},
		},
	} {
		w := &waiter{result: &result{}, action: api.ServerActionAction(tc.action)}
		for n, s := range tc.steps {
			server := api.Server{Status: s.status, Flavor: api.ServerFlavor{Name: s.flavor}}
			server.Instance = &api.ServerInstance{State: api.InstanceState(domain.StateOf(s.status, ""))}
			w.update(server)
			if w.isDone != s.isDone || (w.Error != nil) != s.fails {
				t.Errorf("%s: step %d: done %t, %+v", name, n, w.isDone, w.Error)
			}
		}
	}
}

// TestManyThatBreakOff shows the results of the first request, although the second one failed.
func TestManyThatBreakOff(t *testing.T) {
	t.Parallel()
	calls := 0
	a, shown, _ := clitest.New(t, func(w http.ResponseWriter, req *http.Request) {
		if calls++; calls > 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var body api.ServersAction
		_ = json.NewDecoder(req.Body).Decode(&body)
		results := []result{}
		for _, id := range body.Ids {
			results = append(results, result{ID: id, State: "deleting", Changed: true})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
	})
	var targets []cli.Target
	for n := range maxTargets + 1 {
		targets = append(targets, cli.Target{Given: fmt.Sprintf("web-%d", n), ID: fmt.Sprintf("id-%d", n)})
	}
	s := &servers{App: a}
	err := s.act(t.Context(), targets, "delete", map[string]any{}, cli.Wait{})
	if s.Code(err) != exit.Unavailable || !strings.Contains(err.Error(),
		"of the servers that are not listed it is not known") {
		t.Errorf("it ends with %v", err)
	}
	if text := shown.String(); strings.Count(text, "accepted") != maxTargets || strings.Contains(text,
		fmt.Sprintf("web-%d ", maxTargets)) {
		t.Errorf("it shows\n%s", text)
	}
}

// TestAnActionIsSentAgain under the same id when its answer is lost, and waited for while cloudfn is at work on it.
func TestAnActionIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		breaks, busy int
		given, want  string // the id given by --id, and what the error has
	}{
		"answered":            {want: ""},
		"lost twice":          {breaks: 2, busy: 1},
		"lost each time":      {breaks: 100, given: "the-id", want: "add --id the-id"},
		"refused immediately": {busy: 100, want: "being worked on"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex // a handler may still run when its connection has ended
			ids, n := map[string]int{}, 0
			a, _, _ := clitest.New(t, func(w http.ResponseWriter, req *http.Request) {
				var body api.ServerAction
				_ = json.NewDecoder(req.Body).Decode(&body)
				mu.Lock()
				defer mu.Unlock()
				ids[domain.Deref(body.ID)]++
				switch n++; {
				case n <= tc.breaks:
					panic(http.ErrAbortHandler)
				case n <= tc.breaks+tc.busy:
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusConflict)
					fmt.Fprint(w, `{"detail": "it is being worked on", "code": "conflict"}`)
				default:
					fmt.Fprint(w, `{"id": "s", "state": "rebooting", "changed": true}`)
				}
			})
			s := &servers{App: a}
			body := map[string]any{}
			if tc.given != "" {
				body["id"] = tc.given
			}
			err := s.act(t.Context(), []cli.Target{{Given: "web", ID: "s"}}, "reboot", body, cli.Wait{})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("it ends with %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(ids) != 1 || ids[""] != 0 || tc.given != "" && ids[tc.given] == 0 {
				t.Errorf("it was sent under the ids %v", ids)
			}
			if want := tc.breaks + 1; tc.want == "" && n != want+tc.busy {
				t.Errorf("it was sent %d times", n)
			}
		})
	}
}

// TestShowHasAll: a server is shown with all that OpenStack's client shows and with its lease, by names where they are
// known. A lease that cannot be read stays an id.
func TestShowHasAll(t *testing.T) {
	t.Parallel()
	const id, lease, image, group = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01", "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e02",
		"019b7c5e-7f60-7a88-b14f-6d0e5a4c3e03", "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e04"
	for isReadable, want := range map[bool]string{
		true:  "Lease: trial, active, until 2026-01-02 03:04:05Z, then shelve (" + lease + ")",
		false: "Lease: " + lease,
	} {
		a, out, _ := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasPrefix(r.URL.Path, "/v1/servers"):
				fmt.Fprintf(w, `{"id": %q, "name": "web", "status": "ACTIVE", "image": {"id": %q, "name": "cirros"},
					"metadata": {"role": "db", "app": "shop"}, "tags": ["blue", "green"], "security_groups": ["default", "ssh"],
					"server_groups": [{"id": %q, "name": "apart"}], "instance": {"id": %[4]q, "lease_id": %[5]q},
					"volumes": [{"id": %[2]q, "name": "data"}, {"id": "unnamed", "name": ""}]}`,
					id, image, group, id, lease)
			case isReadable:
				fmt.Fprintf(w, `{"id": %q, "name": "trial", "status": "active", "end": "2026-01-02T03:04:05Z", "on_end": "shelve"}`,
					lease)
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		})
		cmd := (&servers{App: a}).showCommand()
		cmd.SetArgs([]string{id})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		shown := strings.Join(strings.Fields(out.String()), " ")
		for _, line := range []string{
			want, "Image: cirros (" + image + ")", "Metadata: app=shop,role=db", "Tags: blue,green",
			"Security groups: default,ssh", "Server groups: apart (" + group + ")",
			"Volumes: data (" + image + "), unnamed",
		} {
			if !strings.Contains(shown, line) {
				t.Errorf("no %q in\n%s", line, out)
			}
		}
	}
}

// TestConsole prints a log without what would command the terminal, and the URL of a remote console.
func TestConsole(t *testing.T) {
	t.Parallel()
	a, out, _ := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_, _ = w.Write([]byte(`{"type": "novnc", "url": "https://console.example.com/?token=t"}`))
			return
		}
		_, _ = w.Write([]byte(`{"output": "a\tb\n` + `\u001b[2Jé\n"}`))
	})
	for _, tc := range []struct{ flag, want string }{
		{"--lines=2", "a\tb\n\uFFFD[2Jé\n"}, {"--url", "https://console.example.com/?token=t\n"},
	} {
		out.Reset()
		cmd := Command(a)
		cmd.SetArgs([]string{"console", uuid.NewString(), tc.flag})
		if err := cmd.ExecuteContext(t.Context()); err != nil || out.String() != tc.want {
			t.Errorf("%s: got %q, %v", tc.flag, out, err)
		}
	}
}
