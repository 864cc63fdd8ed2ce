package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestWait waits through transient errors, and no longer than it may.
func TestWait(t *testing.T) {
	t.Parallel()
	shown, gets, minute := &bytes.Buffer{}, 0, Wait{IsOn: true, Limit: time.Minute}
	a := &App{hasBegun: true, Err: shown, Now: func() time.Time { return time.Time{} }}
	w := Waiter[int]{
		Get: func(context.Context) (int, error) {
			if gets++; gets == 1 {
				return 0, &api.Error{Status: http.StatusServiceUnavailable}
			}
			return gets, nil
		},
		Done:      func(n int) (bool, error) { return n == 3, nil },
		Rows:      func(n int) []output.Row { return []output.Row{{Name: "web", State: strconv.Itoa(n)}} },
		Remaining: func(n int) string { return fmt.Sprintf("web is %d", n) },
	}
	if n, err := w.Wait(t.Context(), a, minute, 1); err != nil || n != 3 || gets != 3 {
		t.Errorf("after %d gets: %d, %v", gets, n, err)
	}
	if text := strings.Join(strings.Fields(shown.String()), " "); text != "0s web 1 0s web 2 0s web 3" {
		t.Errorf("it shows %q", text)
	}
	refused := &api.Error{Status: http.StatusForbidden}
	w.Get = func(context.Context) (int, error) { return 7, refused }
	if n, err := w.Wait(t.Context(), a, minute, 1); n != 1 || !errors.Is(err, refused) {
		t.Errorf("a rejection ends it with %d, %v", n, err)
	}
	w.Get = func(context.Context) (int, error) { return 7, nil }
	if n, err := w.Wait(t.Context(), a, Wait{}, 1); n != 7 || err != nil {
		t.Errorf("without a wait it gives %d, %v", n, err)
	}
	failed := exit.Failedf("it failed")
	w.Done = func(int) (bool, error) { return false, failed }
	if n, err := w.Wait(t.Context(), a, minute, 1); n != 7 || !errors.Is(err, failed) {
		t.Errorf("a failure ends it with %d, %v", n, err)
	}
	w.Done = func(int) (bool, error) { return false, nil }
	_, err := w.Wait(t.Context(), a, Wait{IsOn: true, Limit: time.Millisecond}, 1)
	if code := a.Code(err); code != exit.Unavailable ||
		err.Error() != "not done within 1ms, and it goes on: web is 7" {
		t.Errorf("too late gives %d: %v", code, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrInterrupted)
	_, err = w.Wait(ctx, a, minute, 1)
	if code := a.Code(err); code != exit.Interrupted || !strings.Contains(err.Error(), "goes on (web is 7)") {
		t.Errorf("interrupted gives %d: %v", code, err)
	}
}

// TestLocale draws in blocks only where the first variable that decides says so.
func TestLocale(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"": false, "LANG=C": false, "LANG=de_DE.UTF-8": true, "LANG=C.utf8": true,
		"LC_ALL=C LANG=de_DE.UTF-8": false, "LC_CTYPE=C.UTF-8 LANG=C": true,
	} {
		env := func(name string) (string, bool) {
			for pair := range strings.FieldsSeq(text) {
				if value, ok := strings.CutPrefix(pair, name+"="); ok {
					return value, true
				}
			}
			return "", false
		}
		if got := (&App{Env: env}).HasUTF8(); got != want {
			t.Errorf("%q gives %t", text, got)
		}
	}
}

// TestMoment reads a time, or how far it is from now.
func TestMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 10, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	past, future := &Moment{now: clock, isPast: true}, &Moment{now: clock}
	for text, span := range map[string]time.Duration{
		"1h": time.Hour, "90m": 90 * time.Minute,
		"7d": 7 * 24 * time.Hour,
	} {
		if err := past.set(text); err != nil || !past.At.Equal(now.Add(-span)) {
			t.Errorf("%s ago is %s, %v", text, past.At, err)
		}
		if err := future.set(text); err != nil || !future.At.Equal(now.Add(span)) || future.Span != span {
			t.Errorf("in %s is %s, %s, %v", text, future.At, future.Span, err)
		}
	}
	want := time.Date(2026, 1, 2, 2, 4, 5, 0, time.UTC)
	for _, m := range []*Moment{past, future} {
		if err := m.set("2026-01-02T03:04:05+01:00"); err != nil || !m.At.Equal(want) || m.Span != 0 {
			t.Errorf("a time is %s, %v", m.At, err)
		}
		for _, text := range []string{"-1h", "1", "xd", "-1d", "2026-01-02", "99999999d"} {
			if err := m.set(text); err == nil {
				t.Errorf("%s is %s", text, m.At)
			}
		}
	}
	if err := future.set("2026-01-02 03:04:05Z"); err != nil || !future.At.Equal(want.Add(time.Hour)) {
		t.Errorf("a time as tables have it is %s, %v", future.At, err)
	}
	now = now.In(time.FixedZone("here", 3600))
	const remedy = "must have an offset from UTC: 2026-01-02T03:04:00+01:00 is that time here, and " +
		"2026-01-02T03:04:00Z in UTC"
	if err := future.set("2026-01-02T03:04"); err == nil || err.Error() != remedy {
		t.Errorf("a time without an offset: %v", err)
	}
	if err := future.set("0s"); err == nil {
		t.Error("now is a time to come")
	}
}

// TestBody has the flags that were given, by the fields of the request; none is null.
func TestBody(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{}
	flags := cmd.Flags()
	flags.String("key-name", "", "")
	flags.String("not-given", "x", "")
	flags.StringSlice("events", nil, "")
	flags.StringSlice("image", nil, "")
	flags.Int("quota-vcpus", 0, "")
	flags.Int("quota-ram", 0, "")
	flags.Bool("reuse", false, "")
	Pairs(cmd, "metadata", "")
	OrNone(flags, "quota-vcpus", "quota-ram", "image")
	line := "--key-name k --events= --image none --quota-vcpus none --quota-ram 2 --reuse --metadata a=b=c " +
		"--metadata d="
	if err := flags.Parse(strings.Fields(line)); err != nil {
		t.Fatal(err)
	}
	body := Body(flags, "key-name", "not-given", "events", "image:limits.images", "quota-vcpus:quota.vcpus",
		"quota-ram:quota.ram_mb", "reuse", "metadata", "absent")
	text, err := json.Marshal(body)
	const want = `{"events":[],"key_name":"k","limits":{"images":null},"metadata":{"a":"b=c","d":""},` +
		`"quota":{"ram_mb":2,"vcpus":null},"reuse":true}`
	if string(text) != want || err != nil {
		t.Errorf("it is %s, %v\nwant  %s", text, err, want)
	}
	if got := Query(flags, "key-name", "events", "reuse",
		"quota-ram").Encode(); got != "key_name=k&quota_ram=2&reuse=true" {
		t.Errorf("the query is %s", got)
	}
	if err := flags.Set("quota-ram", "many"); err == nil || !strings.Contains(err.Error(), "whole number, or none") {
		t.Errorf("many gives %v", err)
	}
}

// TestFailedCompletionSaysSo: bash and zsh show why nothing is offered.
func TestFailedCompletionSaysSo(t *testing.T) {
	t.Parallel()
	a := &App{URL: "http://cloud.example.com", findTime: 2 * time.Second}
	for want, err := range map[string]error{
		"//cloud.example.com did not answer within 2s; try again": fmt.Errorf("x: %w", context.DeadlineExceeded),
		"no completions: not \ufffd signed in":                    errors.New("not \x1b signed in"),
	} {
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		fails := func(context.Context, []string, string) ([]string, error) { return nil, err }
		found, _ := a.Complete(0, fails)(cmd, nil, "")
		if len(found) != 1 || !strings.HasSuffix(found[0], want) || found[0] == want {
			t.Errorf("got %q, want help with %q", found, want)
		}
	}
}

// TestResolve finds each thing once by its id or its only name; the error for another name suggests the nearest one.
func TestResolve(t *testing.T) {
	t.Parallel()
	type thing struct {
		id, name string
		isOver   bool
	}
	const id = "019B7c5e-1f20-7a31-b5d4-0c7e2f9a6b13"
	all := []thing{{"1", "web", false}, {"2", "db-primary", false}, {"3", "db-primary", false}, {"4", "web", true}}
	ref := func(one thing) (string, string, bool) { return one.id, one.name, one.isOver }
	var read []string
	list := func(names []string) ([]thing, error) { read = names; return all, nil }
	targets, err := Resolve([]string{"web", id, "wep", "web", "nothing", "db-primary"}, "lease", ref, list)
	if err != nil || !slices.Equal(read, []string{"web", "wep", "web", "nothing", "db-primary"}) {
		t.Errorf("it reads %q, %v", read, err)
	}
	var got []string
	for _, one := range targets {
		got = append(got, fmt.Sprint(one.Given, " ", one.ID, " ", one.Err))
	}
	if want := []string{
		"web 1 <nil>", id + " " + strings.ToLower(id) + " <nil>",
		`wep  there is no lease "wep"; did you mean "web"?`, `nothing  there is no lease "nothing"`,
		`db-primary  2 leases are named "db-primary": give one of the ids 2, 3`,
	}; !slices.Equal(got, want) {
		t.Errorf("it finds %q, want %q", got, want)
	}
	a := &App{hasBegun: true}
	if a.Code(targets[2].Err) != exit.NotFound || a.Code(targets[4].Err) != exit.Conflict {
		t.Errorf("%d, %d", a.Code(targets[2].Err), a.Code(targets[4].Err))
	}
	unread := func([]string) ([]thing, error) { return nil, errors.New("the list is read") }
	if _, err := One(Resolve([]string{id}, "lease", ref, unread)); err != nil {
		t.Errorf("an id gives %v", err)
	}
	if _, err := One(Resolve([]string{"web"}, "lease", ref, unread)); err == nil {
		t.Error("a list that cannot be read is no error")
	}
}

func TestNear(t *testing.T) {
	t.Parallel()
	absent := &api.Error{Status: http.StatusNotFound, Code: "not_found", Detail: `there is no node "compute1"`}
	err := Near(absent, "compute1", func() []string { return []string{"compute-1", "compute-20"} })
	const want = `there is no node "compute1"; did you mean "compute-1"?`
	if code := (&App{hasBegun: true}).Code(err); err.Error() != want || code != exit.NotFound {
		t.Errorf("%d %v", code, err)
	}
	for _, other := range []error{nil, errors.New("x"), &api.Error{Status: http.StatusForbidden, Code: "forbidden"}} {
		unread := func() []string { t.Error("the names are read"); return nil }
		if err := Near(other, "compute1", unread); !errors.Is(err, other) {
			t.Errorf("%v became %v", other, err)
		}
	}
}

// TestDeletionIsConfirmed at a terminal, unless --yes or --dry-run is given.
func TestDeletionIsConfirmed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args   string
		answer bool
		asked  string
		isDone bool
	}{
		{"things delete web-1 web-2", true, "Delete web-1 web-2?", true},
		{"things delete web-1", false, "Delete web-1?", false},
		{"things delete web-1 -y", false, "", true},
		{"things delete web-1 --dry-run", false, "", true},
		{"things list", false, "", true},
	} {
		var asked string
		var isDone bool
		done := func(*cobra.Command, []string) error {
			if isDone {
				return errors.New("it is done twice")
			}
			isDone = true
			return nil
		}
		remove := &cobra.Command{Use: "delete THING...", RunE: done}
		remove.Flags().Bool("dry-run", false, "")
		a := &App{Env: func(string) (string, bool) { return "", false }}
		a.Confirm = func(_ context.Context, question string) (bool, error) {
			asked = question
			return c.answer, nil
		}
		root := a.Root("cloudfn", func(*App) []*cobra.Command {
			return []*cobra.Command{Group("things", "", remove, &cobra.Command{Use: "list", RunE: done})}
		})
		root.SetArgs(strings.Fields(c.args))
		err := root.ExecuteContext(t.Context())
		if asked != c.asked || isDone != c.isDone || (err == nil) != c.isDone {
			t.Errorf("%s: asked %q, done %t, %v", c.args, asked, isDone, err)
		}
	}
}

// TestListByPages: CSV of a list is printed while it is read, and has its titles once.
func TestListByPages(t *testing.T) {
	t.Parallel()
	type thing struct {
		Name string `json:"name"`
	}
	var out bytes.Buffer
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, _ := strconv.Atoi(r.URL.Query().Get("marker"))
		if lines := strings.Count(out.String(), "\n"); page > 0 && lines != 2*page+1 {
			t.Errorf("before page %d %d lines are printed", page, lines)
		}
		next := fmt.Sprintf(`"/v1/things?marker=%d"`, page+1)
		if page == 2 {
			next = "null"
		}
		fmt.Fprintf(w, `{"things": [{"name": "a%d"}, {"name": "b%d"}], "next": %s}`, page, page, next)
	}))
	defer server.Close()
	a := &App{URL: server.URL, Print: output.Printer{Out: &out, Format: "csv"}}
	a.Env = func(string) (string, bool) { return "", false }
	a.Client = a.NewClient(func(context.Context, bool) (domain.Secret, error) { return "token", nil })
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	things := Noun[thing]{Path: "/v1/things", Key: "things", Table: output.Table[thing]{Columns: []string{"NAME"}}}
	const want = "name\na0\nb0\na1\nb1\na2\nb2\n"
	if err := things.PrintList(cmd, a, nil); err != nil || out.String() != want {
		t.Errorf("got %q, %v", out.String(), err)
	}
	LimitFlag(cmd, 3)
	out.Reset()
	if err := things.PrintList(cmd, a, nil); err != nil || out.String() != "name\na0\nb0\na1\n" {
		t.Errorf("three of them: got %q, %v", out.String(), err)
	}
}

// TestWatchedList prints the list, and then what is new or has changed, until it is interrupted.
func TestWatchedList(t *testing.T) {
	t.Parallel()
	type thing struct {
		Name  string `json:"name"`
		State string `json:"state"`
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		var out bytes.Buffer
		a := &App{Print: output.Printer{Out: &out, Format: "table"}}
		cmd := &cobra.Command{}
		cmd.SetContext(ctx)
		WatchFlag(cmd)
		if err := cmd.Flags().Set("watch", "true"); err != nil {
			t.Fatal(err)
		}
		reads := 0
		err := PrintList(cmd, a, func() ([]api.Item[thing], output.Table[thing], error) {
			all := []thing{{"web", "building"}, {"db", "active"}}
			switch reads++; reads {
			case 2:
				return nil, output.Table[thing]{}, &api.Error{Status: http.StatusServiceUnavailable}
			case 3, 4:
				all[0].State = "active"
			case 5:
				cancel(ErrInterrupted)
			}
			var items []api.Item[thing]
			for _, one := range all {
				items = append(items, api.Item[thing]{Value: one, Raw: []byte(one.Name + one.State)})
			}
			return items, output.Table[thing]{Columns: []string{"NAME", "STATE"}}, nil
		})
		const want = "NAME  STATE\nweb   building\ndb    active\nweb   active\nweb   building\n"
		if !errors.Is(err, ErrInterrupted) || out.String() != want {
			t.Errorf("got %q, %v", out.String(), err)
		}
	})
}
