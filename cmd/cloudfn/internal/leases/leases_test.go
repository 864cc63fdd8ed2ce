package leases

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/clitest"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/domain"
)

const (
	openLease, endedLease = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01", "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e02"
	serverID, instanceID  = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e03", "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e04"
	otherServer           = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e05"
)

// namedThings has two leases workshop, two open ones twice, a tracked server first and another one, and keeps what is
// sent.
func namedThings(sent *string) http.HandlerFunc {
	const lease = `{"id": %q, "name": %q, "status": %q, "reservations": [], "events": []}`
	first := fmt.Sprintf(`{"id": %q, "name": "first", "instance": {"id": %q}}`, serverID, instanceID)
	other := fmt.Sprintf(`{"id": %q, "name": "other"}`, otherServer)
	return func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case r.Method == http.MethodPost, r.Method == http.MethodPatch:
			body, _ := io.ReadAll(r.Body)
			*sent = string(body)
			fmt.Fprintf(w, lease, openLease, "nap", "pending")
		case path == "/v1/leases":
			*sent = r.URL.Query().Get("instance_id")
			all := strings.Join([]string{lease, lease, lease, lease}, ",")
			fmt.Fprintf(w, `{"leases": [`+all+`], "next": null}`, endedLease, "workshop", "ended", openLease, "workshop",
				"active", openLease, "twice", "active", endedLease, "twice", "pending")
		case path == "/v1/servers":
			fmt.Fprintf(w, `{"servers": [%s, %s], "next": null}`, first, other)
		case path == "/v1/servers/"+serverID, path == "/v1/servers/"+instanceID:
			fmt.Fprint(w, first)
		case path == "/v1/servers/"+otherServer:
			fmt.Fprint(w, other)
		default:
			fmt.Fprintf(w, lease, strings.TrimPrefix(path, "/v1/leases/"), "workshop", "active")
		}
	}
}

func runCommand(
	t *testing.T, command func(*cli.App) *cobra.Command, args ...string,
) (sent, out string, code int, err error) {
	t.Helper()
	a, printed, _ := clitest.New(t, namedThings(&sent))
	cmd := command(a)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	if err != nil {
		code = a.Code(err)
	}
	return sent, printed.String(), code, err
}

// TestLeaseByName finds the lease that has not ended, and says how to find its id where the name does not do.
func TestLeaseByName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		code int
		says string
	}{
		"workshop": {0, ""},
		"twice":    {exit.Conflict, `2 leases are named "twice": give one of the ids `},
		"nope":     {exit.NotFound, `there is no lease "nope": cloudfn leases list shows those that there are`},
	} {
		_, out, code, err := runCommand(t, show, name)
		if code != want.code || want.says != "" && !strings.Contains(err.Error(), want.says) ||
			code == 0 && !strings.Contains(out, openLease) {
			t.Errorf("%s: %d %v %s", name, code, err, out)
		}
	}
}

// TestLeaseOfServer takes a server's name, its id, or its instance's.
func TestLeaseOfServer(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]map[string]any{
		"first":     {"type": "instance", "instance_id": instanceID},
		serverID:    {"type": "instance", "instance_id": instanceID},
		instanceID:  {"type": "instance", "instance_id": instanceID},
		"other":     {"type": "instance", "server_id": otherServer},
		otherServer: {"type": "instance", "server_id": otherServer},
	} {
		sent, _, _, err := runCommand(t, create, "nap", "--duration", "1h", "--instance", given)
		var body struct {
			Reservations []map[string]any `json:"reservations"`
		}
		if json.Unmarshal([]byte(sent), &body) != nil || err != nil || len(body.Reservations) != 1 ||
			fmt.Sprint(body.Reservations[0]) != fmt.Sprint(want) {
			t.Errorf("%s: sent %s: %v", given, sent, err)
		}
	}
	_, _, code, err := runCommand(t, create, "nap", "--duration", "1h", "--instance", "nope")
	if code != exit.NotFound {
		t.Errorf("an unknown name: %v", err)
	}
	if sent, _, _, err := runCommand(t, list, "--instance", "first"); sent != instanceID || err != nil {
		t.Errorf("the query of the list is %q: %v", sent, err)
	}
}

// TestTimes: times are now, how far off, or as such, and spans have several units.
func TestTimes(t *testing.T) {
	t.Parallel()
	hosts := []string{"nap", "--hosts", "1"}
	for _, tc := range []struct {
		command func(*cli.App) *cobra.Command
		args    []string
		want    map[string]any
	}{
		{update, []string{openLease, "--end", "now"}, map[string]any{"end": "now"}},
		{update, []string{openLease, "--start", "now"}, map[string]any{"start": "now"}},
		{update, []string{openLease, "--duration", "1h30m"}, map[string]any{"duration": "PT1H30M"}},
		{update, []string{openLease, "--duration", "1d12h"}, map[string]any{"duration": "P1DT12H"}},
		{update, []string{openLease, "--duration", "90s"}, map[string]any{"duration": "PT90S"}},
		{update, []string{openLease, "--end", "1h30m"}, map[string]any{"end": 90 * time.Minute}},
		{update, []string{openLease, "--end", "2w"}, map[string]any{"end": 14 * 24 * time.Hour}},
		{update, []string{openLease, "--end", "P1DT12H"}, map[string]any{"end": 36 * time.Hour}},
		{extend, []string{openLease, "--end", "now"}, map[string]any{"end": "now"}},
		{create, append(hosts, "--start", "now", "--duration", "2d"), map[string]any{"start": "now", "duration": "P2D"}},
		{create, append(hosts, "--end", "1d12h"), map[string]any{"end": 36 * time.Hour}},
		{create, append(hosts, "--end", "now"), nil},
		{create, append(hosts, "--duration", "1h30"), nil},
		{update, []string{openLease, "--end", "soon"}, nil},
	} {
		began := time.Now()
		sent, _, _, err := runCommand(t, tc.command, tc.args...)
		if tc.want == nil {
			if err == nil || sent != "" {
				t.Errorf("%v: sent %s: %v", tc.args, sent, err)
			}
			continue
		}
		var body map[string]any
		if err != nil || json.Unmarshal([]byte(sent), &body) != nil {
			t.Errorf("%v: sent %s: %v", tc.args, sent, err)
			continue
		}
		for field, want := range tc.want {
			got := body[field]
			if span, isSpan := want.(time.Duration); isSpan {
				at, _ := time.Parse(time.RFC3339, fmt.Sprint(got))
				if at.Sub(began.Add(span)).Abs() < time.Minute {
					continue
				}
			}
			if got != want {
				t.Errorf("%v: %s is %v, want %v", tc.args, field, got, want)
			}
		}
	}
}

// TestWaitShowsProgress: each status that a lease has meanwhile is shown; at a terminal with the elapsed time.
func TestWaitShowsProgress(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]func() (int, int){"pipe": nil, "terminal": func() (int, int) { return 80, 24 }} {
		statuses := []string{"starting", "starting", "active"}
		a, _, notes := clitest.New(t, func(w http.ResponseWriter, r *http.Request) {
			status := "pending"
			if r.Method == http.MethodGet {
				status, statuses = statuses[0], statuses[1:]
			}
			fmt.Fprintf(w, `{"id": %q, "name": "nap", "status": %q, "reservations": [], "events": []}`, openLease, status)
		})
		a.ErrSize = size
		cmd := create(a)
		cmd.SetArgs([]string{"nap", "--hosts", "1", "--duration", "1h", "--wait"})
		if err := cmd.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"nap  starting", "nap  active"} {
			if text := strings.ReplaceAll(notes.String(), "   0s  ", ""); !strings.Contains(text, want) {
				t.Errorf("%s: it lacks %q:\n%q", name, want, text)
			}
		}
	}
}

// TestHeal: the flag is a reservation's when a lease is made, and needs hosts.
func TestHeal(t *testing.T) {
	t.Parallel()
	for hosts, want := range map[string]string{"1": "manual", "": ""} {
		cmd := create(&cli.App{Now: time.Now})
		if err := cmd.ParseFlags([]string{"--heal", "manual", "--duration", "8h", "--hosts", hosts}); err != nil {
			t.Fatal(err)
		}
		body, err := request(cmd, "workshop")
		var got any = ""
		if made, _ := body["reservations"].([]map[string]any); len(made) == 1 {
			got = made[0]["heal"]
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("with --hosts %q it is %v: %v", hosts, got, err)
		}
	}
}

// TestExamples parses what the help shows, as a shell does: the flags, and the expressions in them.
func TestExamples(t *testing.T) {
	t.Parallel()
	for _, command := range []func(*cli.App) *cobra.Command{create, availability} {
		cmd := command(&cli.App{Now: time.Now})
		for example := range strings.SplitSeq(strings.ReplaceAll(cmd.Example, "\\\n", ""), "\n") {
			words, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\n' `+example).Output()
			if err != nil {
				t.Fatal(err)
			}
			args := strings.Split(strings.TrimSpace(string(words)), "\n")
			if got := strings.Join(args[:3], " "); got != "cloudfn leases "+cmd.Name() {
				t.Errorf("%q is of another command", got)
			}
			cmd := command(&cli.App{Now: time.Now})
			if err := cmd.ParseFlags(args[3:]); err != nil {
				t.Errorf("%s: %v", example, err)
				continue
			}
			if cmd.Name() == "create" {
				if _, err := request(cmd, args[3]); err != nil {
					t.Errorf("%s: %v", example, err)
				}
			}
			expressions, err := cmd.Flags().GetStringArray("capability")
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range expressions {
				if _, err := domain.ParseCapability("--capability", text); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestEndedLease: a lease that has ended shows when it did. Nothing is to be confirmed once it is ending.
func TestEndedLease(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := api.Lease{
		Status: api.LeaseStatusActive, End: at.Add(time.Hour), OnEnd: api.LeaseOnEnd(domain.OnEndDelete),
		Events: []api.LeaseEvent{
			{Type: api.LeaseEventTypeStart, At: new(at.Add(-time.Hour))}, {Type: api.LeaseEventTypeEnd},
		},
	}
	if got := leases.Table.Text("END", l); got != "2026-01-02 04:04:05Z" || !deletes(l) {
		t.Errorf("an active lease ends at %s, and deletes is %t", got, deletes(l))
	}
	if l.Status = api.LeaseStatusEnding; deletes(l) {
		t.Error("it is ending already")
	}
	l.Status, l.Events[1].At = api.LeaseStatusEnded, &at
	if got := leases.Table.Text("END", l); got != "2026-01-02 03:04:05Z" {
		t.Errorf("an ended lease shows %s", got)
	}
}
