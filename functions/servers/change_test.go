package servers

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

func patch(t *testing.T, app *testkit.Client, id, body string) (a testkit.Answer, server domain.Server) {
	t.Helper()
	a = app.Do(t, http.MethodPatch, "/v1/servers/"+id, body, "Content-Type", "application/json")
	if a.Status == http.StatusOK {
		a.JSON(t, &server)
	}
	return a, server
}

// written is what people write on a server.
func written(s domain.Server) string {
	slices.Sort(s.Tags)
	var items []string
	for _, key := range slices.Sorted(maps.Keys(s.Metadata)) {
		items = append(items, key+"="+s.Metadata[key])
	}
	return fmt.Sprintf("%s|%s|%v%v", s.Name, s.Description, items, s.Tags)
}

// TestChange of a real server: each request may be repeated, and leaves what it does not name.
func TestChange(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	server := p.Boot(t, "web", 1)[0].ID
	own := uuid.NewString() // as a launch marks its servers
	if err := p.Session(t).TagServer(t.Context(), server, own); err != nil {
		t.Fatal(err)
	}
	instance := track(t, testkit.Connect(t, database), p, server, domain.InstanceActive)
	for _, tc := range []struct{ body, want string }{
		{
			`{"name": "web-2 ✓", "description": "ü", "metadata": {"a": "1", "B": "2"}, "tags": ["x", "Web", "5% ?#ü"]}`,
			"web-2 ✓|ü|[B=2 a=1][5% ?#ü Web " + own + " x]",
		},
		{
			`{"metadata": {"a": null, "A": "3", "absent": null}}`,
			"web-2 ✓|ü|[A=3 B=2][5% ?#ü Web " + own + " x]",
		},
		{`{"tags": ["` + own + `", "web"], "description": null}`, "web-2 ✓||[A=3 B=2][" + own + " web]"},
		{`{"tags": [], "metadata": {}, "description": ""}`, "web-2 ✓||[A=3 B=2][" + own + "]"},
	} {
		for _, id := range []string{server, instance} { // the second time there is nothing to do
			a, got := patch(t, app, id, tc.body)
			if a.Status != 200 || sorted(written(got)) != sorted(tc.want) {
				t.Errorf("%s: got %d %s, want %s", tc.body, a.Status, a.Body, tc.want)
			}
		}
		var shown domain.Server
		if app.Get(t, "/v1/servers/"+server).JSON(t, &shown); sorted(written(shown)) != sorted(tc.want) {
			t.Errorf("%s: then it is %s", tc.body, written(shown))
		}
	}
	stranger := testkit.NewProject(t)
	stranger.Grant(t, stranger.UserID, "admin")
	if a, _ := patch(t, app.As(stranger.Token(t)), server, `{"name": "x"}`); a.Status != 404 {
		t.Errorf("an admin of another project got %d %s", a.Status, a.Body)
	}
	if a, _ := patch(t, app.As(p.ReaderToken(t)), server, `{"name": "x"}`); a.Status != 403 {
		t.Errorf("a reader got %d %s", a.Status, a.Body)
	}
}

// sorted has the letters of a text in order: Nova orders tags by its table's rules.
func sorted(text string) string {
	runes := []rune(text)
	slices.Sort(runes)
	return string(runes)
}

// TestChangeRefused: the fault names its field, and Nova is not called.
func TestChangeRefused(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "web", 1)[0].ID
	nova := testkit.Instead(t, testkit.Endpoint(t, "compute"), func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet {
			t.Errorf("Nova got %s %s", r.Method, r.URL.Path)
		}
		return false
	})
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo")
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), env), Function).As(p.Token(t))
	many := make([]string, 51)
	for n := range many {
		many[n] = fmt.Sprintf("%q", fmt.Sprint("tag", n))
	}
	for body, field := range map[string]string{
		`{}`:                                          "",
		`{"name": ""}`:                                "name",
		`{"name": null}`:                              "name",
		`{"name": " x"}`:                              "name",
		`{"name": "x🚀"}`:                              "name",
		`{"description": "a\nb"}`:                     "description",
		`{"metadata": null}`:                          "metadata",
		`{"metadata": {"ü": "x"}}`:                    "metadata.ü",
		`{"metadata": {"k": "🚀"}}`:                    "metadata.k",
		`{"metadata": {"cloudfn_managed": "x"}}`:      "metadata.cloudfn_managed",
		`{"metadata": {"Cloudfn_managed": null}}`:     "metadata.Cloudfn_managed",
		`{"tags": null}`:                              "tags",
		`{"tags": ["a", "a"]}`:                        "tags[1]",
		`{"tags": ["e", "é"]}`:                        "tags[1]",
		`{"tags": [".."]}`:                            "tags[0]",
		`{"metadata": {"..": null}}`:                  "metadata...",
		`{"tags": ["a,b"]}`:                           "tags[0]",
		`{"tags": ["a", "cloudfn-order:x", "b"]}`:     "tags[1]",
		`{"tags": ["` + uuid.NewString() + `"]}`:      "tags[0]",
		`{"tags": [` + strings.Join(many, ",") + `]}`: "tags",
		`{"reusable": true, "name": "x"}`:             "reusable",
	} {
		a, _ := patch(t, app, server, body)
		if a.Status != 400 || field != "" && !strings.Contains(string(a.Body), `"field":"`+field+`"`) {
			t.Errorf("%s: got %d %s, want the field %s", body, a.Status, a.Body, field)
		}
	}
	if a, _ := patch(t, app, uuid.NewString(), `{"name": "x"}`); a.Status != 404 {
		t.Errorf("an absent server: got %d %s", a.Status, a.Body)
	}
}

// TestChangeHalfway: the error of a call that fails says what was changed before, and the same request does the rest.
func TestChangeHalfway(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "web", 1)[0].ID
	var fails atomic.Bool
	var calls atomic.Int64
	nova := testkit.Instead(t, testkit.Endpoint(t, "compute"), func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet {
			calls.Add(1)
		}
		if fails.Load() && strings.HasSuffix(r.URL.Path, "/tags/b") {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"conflictingRequest": {"message": "It moves."}}`))
			return true
		}
		return false
	})
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo")
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), env), Function).As(p.Token(t))
	const body = `{"name": "web-2", "metadata": {"k": "v"}, "tags": ["a", "b"]}`
	fails.Store(true)
	a, _ := patch(t, app, server, body)
	for _, part := range []string{"nova: It moves.", "changed before: name, metadata.k, tag", "the same request"} {
		if a.Status != 409 || !strings.Contains(string(a.Body), part) {
			t.Errorf("got %d %s, want %s", a.Status, a.Body, part)
		}
	}
	fails.Store(false)
	calls.Store(0)
	a, got := patch(t, app, server, body)
	if a.Status != 200 || written(got) != "web-2||[k=v][a b]" || calls.Load() != 1 {
		t.Errorf("got %d %s after %d calls", a.Status, a.Body, calls.Load())
	}
}
