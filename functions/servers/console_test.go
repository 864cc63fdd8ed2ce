package servers

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestConsoleLog shows what Nova's fake driver writes, by the server's id and its instance's. Nova's policy decides
// about readers. An admin gets nothing of other projects, although Nova would show it.
func TestConsoleLog(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "talks", 1)[0].ID
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, nil), Function).As(p.Token(t))
	instance := track(t, testkit.Connect(t, database), p, server, domain.InstanceActive)
	const all = "FAKE CONSOLE OUTPUT\nANOTHER\nLAST LINE"
	for path, want := range map[string]string{
		server + "/console": all, instance + "/console": all, server + "/console?lines=2": "ANOTHER\nLAST LINE",
		server + "/console?lines=1": "LAST LINE", server + "/console?lines=1000": all,
	} {
		var got ServerConsoleLog
		if a := app.Get(t, "/v1/servers/"+path); a.Status != 200 || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got %d %s %v", path, a.Status, a.Body, a.Header)
		} else if a.JSON(t, &got); got.Output != want {
			t.Errorf("%s: got %q, want %q", path, got.Output, want)
		}
	}
	for path, status := range map[string]int{
		server + "/console?lines=0": 400, server + "/console?lines=1001": 400, uuid.NewString() + "/console": 404,
	} {
		if a := app.Get(t, "/v1/servers/"+path); a.Status != status {
			t.Errorf("%s: got %d %s", path, a.Status, a.Body)
		}
	}
	admin := app.As(testkit.Token(t, "admin"))
	if a := admin.Get(t, "/v1/servers/"+server+"/console"); a.Status != 404 {
		t.Errorf("another project's server: got %d %s", a.Status, a.Body)
	}
	if a := openConsole(t, admin, server, "novnc"); a.Status != 404 {
		t.Errorf("another project's server: got %d %s", a.Status, a.Body)
	}
	if status := p.Act(t, server, "shelve"); status != http.StatusAccepted {
		t.Fatalf("shelve: Nova answers %d", status)
	}
	p.Await(t, server, "SHELVED_OFFLOADED")
	if a := app.Get(t, "/v1/servers/"+server+"/console"); a.Status != 409 ||
		!strings.Contains(string(a.Body), "is not ready") {
		t.Errorf("without a host: got %d %s", a.Status, a.Body)
	}
}

func openConsole(t *testing.T, app *testkit.Client, server, kind string) testkit.Answer {
	t.Helper()
	return app.Do(t, http.MethodPost, "/v1/servers/"+server+"/console", `{"type": "`+kind+`"}`,
		"Content-Type", "application/json", "Idempotency-Key", uuid.NewString())
}

// TestRemoteConsole opens consoles by a Nova that has them; the sandbox's has none. The token in a URL is neither
// logged nor stored.
func TestRemoteConsole(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	server := p.Boot(t, "screen", 1)[0].ID
	at := "https://console.example.com/?token=" + testkit.Canary("console-"+uuid.NewString())
	var protocol string
	nova := testkit.Instead(t, testkit.Endpoint(t, "compute"), func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/servers/"+server+"/remote-consoles") {
			return false
		}
		text, _ := io.ReadAll(r.Body)
		var asked struct {
			Console map[string]string `json:"remote_console"`
		}
		_ = json.Unmarshal(text, &asked)
		protocol = asked.Console["protocol"] + " " + r.Header.Get("OpenStack-API-Version")
		w.Header().Set("Content-Type", "application/json")
		asked.Console["url"] = at
		_ = json.NewEncoder(w).Encode(map[string]any{"remote_console": asked.Console})
		return true
	})
	env := testkit.RedirectTo(t, map[string]string{"compute": nova}).Env(t, "demo")
	database := testkit.Database(t)
	app := testkit.Start(t, testkit.Env(t, database, env), Function).As(p.Token(t))
	for kind, want := range map[string]string{
		"novnc": "vnc compute 2.6", "spice-html5": "spice compute 2.6", "rdp-html5": "rdp compute 2.6",
		"serial": "serial compute 2.6", "webmks": "mks compute 2.8",
	} {
		var got ServerConsole
		if a := openConsole(t, app, server, kind); a.Status != 200 || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got %d %s %v", kind, a.Status, a.Body, a.Header)
		} else if a.JSON(t, &got); got.Type != kind || got.URL != at || protocol != want {
			t.Errorf("%s: got %+v by %s", kind, got, protocol)
		}
	}
	for kind, status := range map[string]int{"vnc": 400, "": 400} {
		if a := openConsole(t, app, server, kind); a.Status != status {
			t.Errorf("%q: got %d %s", kind, a.Status, a.Body)
		}
	}
	if a := openConsole(t, app.As(p.ReaderToken(t)), server, "novnc"); a.Status != 403 {
		t.Errorf("a reader: got %d %s", a.Status, a.Body)
	}
	if n := testkit.Scalar[int](t, testkit.Connect(t, database), "select count(*)::int from idempotency_keys"); n != 0 {
		t.Errorf("%d responses are stored", n)
	}
	plain := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), Function).As(p.Token(t))
	if a := openConsole(t, plain, server, "novnc"); a.Status != 409 ||
		!strings.Contains(string(a.Body), "no such console: nova: Unavailable console type novnc.") {
		t.Errorf("the sandbox: got %d %s", a.Status, a.Body)
	}
}

// TestLastLines takes lines from the end, and no more bytes than permitted.
func TestLastLines(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{
		{"", 1, ""},
		{"\n", 1, "\n"},
		{"a", 1, "a"},
		{"a\n", 1, "a\n"},
		{"a\nb", 1, "b"},
		{"a\nb\n", 1, "b\n"},
		{"a\nb\n", 2, "a\nb\n"},
		{"a\n\nb", 2, "\nb"},
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"x\n" + strings.Repeat("é", maxConsoleLog/2) + "\n", 9, strings.Repeat("é", maxConsoleLog/2-1) + "\n"},
		{strings.Repeat("a", maxConsoleLog) + "\nb\n", 9, "b\n"},
	} {
		if got := lastLines(tc.text, tc.n); got != tc.want {
			t.Errorf("%.20q, %d: got %.20q of %d bytes", tc.text, tc.n, got, len(got))
		}
	}
}
