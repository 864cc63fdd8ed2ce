package process_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/functions/connections"
	runconnections "github.com/cloudfn/cloudfn/functions/run-connections"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// lineOf finds what check says of a variable.
func lineOf(out, variable string) string {
	return regexp.MustCompile(`(?m)^(\S+ +` + regexp.QuoteMeta(variable) + `)( .*)?$`).FindString(out)
}

// TestCheck tries wrong settings against the real sandbox: each is named with what would be right, and nothing else is.
func TestCheck(t *testing.T) {
	t.Parallel()
	password := testkit.Canary("no-such-password")
	account := testkit.Redirect(t).Env(t, "collector") // the account in variables, not in clouds.yaml
	base := testkit.Env(t, testkit.Database(t), account)
	base["OS_AUTH_URL"] = testkit.KeystoneURL(t)
	for name, tc := range map[string]struct {
		change   map[string]string
		variable string   // that is wrong; "" = none
		says     []string // in its line
	}{
		"the daemon": {nil, "", nil},
		"a function without an account": {
			map[string]string{"FUNCTION_TARGET": "resources", "OS_USERNAME": "", "OS_PASSWORD": ""}, "", nil,
		},
		"a wrong path": {
			map[string]string{"OS_AUTH_URL": testkit.KeystoneURL(t) + "/wrong"}, "OS_AUTH_URL", []string{
				"not Keystone", "404", "https://keystone.example.com/v3",
			},
		},
		"nobody listens": {
			map[string]string{"OS_AUTH_URL": "http://127.0.0.1:1/v3"}, "OS_AUTH_URL", []string{
				"cannot be reached", "refused",
			},
		},
		"no scheme": {
			map[string]string{"OS_AUTH_URL": "127.0.0.1:5000/v3"}, "OS_AUTH_URL", []string{
				"127.0.0.1:5000/v3", "set it to Keystone's URL",
			},
		},
		"another service": {
			map[string]string{"OS_AUTH_URL": testkit.Endpoint(t, "image")}, "OS_AUTH_URL", []string{"not Keystone"},
		},
		"a region": {
			map[string]string{"OS_REGION_NAME": "RegionNone"}, "OS_REGION_NAME", []string{"RegionNone", "RegionOne"},
		},
		"an interface": {
			map[string]string{"OS_INTERFACE": "outside"}, "OS_INTERFACE", []string{"public, internal or admin"},
		},
		"a password": {
			map[string]string{"OS_PASSWORD": password}, "OS_PASSWORD", []string{
				"the user collector of the domain Default",
			},
		},
		"a user": {
			map[string]string{"OS_USERNAME": "nobody"}, "OS_PASSWORD", []string{
				"the user nobody of the domain Default",
			},
		},
		"a project": {
			map[string]string{"OS_PROJECT_NAME": "nothing"}, "OS_PROJECT_NAME", []string{"nothing", "role"},
		},
		"a trustee": {
			map[string]string{"TRUSTEE_USER_ID": "no-such-user"}, "TRUSTEE_USER_ID", []string{
				"no-such-user", testkit.Trustee(t), "cloudfnd trustee",
			},
		},
		"a default lease": {
			map[string]string{"DEFAULT_LEASE": "1month"}, "DEFAULT_LEASE", []string{"1month", "such as PT8H, P2D"},
		},
		"the project of nodes": {
			map[string]string{
				"NODES_PROJECT_ID": "zz", "OS_USERNAME": "admin", "OS_PROJECT_NAME": "admin", "TRUSTEE_USER_ID": "",
			}, "NODES_PROJECT_ID", []string{"zz", "correct the id"},
		},
		"a port": {map[string]string{"PORT": "99999"}, "PORT", []string{"0 to 65535"}},
		"keys": {
			map[string]string{"SEAL_PUBLIC_KEY": testkit.ConnectionPublicKey}, "SEAL_PUBLIC_KEY", []string{
				"SEAL_PRIVATE_KEY", "cloudfnd keys",
			},
		},
		"a malformed key": {
			map[string]string{"CONNECTION_PRIVATE_KEY": "sealkey_x"}, "CONNECTION_PRIVATE_KEY", []string{"malformed"},
		},
		"a database": {
			map[string]string{"DATABASE_URL": "postgres://u:" + password + "@127.0.0.1:1/x"},
			"DATABASE_URL",
			[]string{"refused"},
		},
		"a project to serve": {
			map[string]string{
				"ALLOWED_DOMAINS": "nowhere", "OS_USERNAME": "admin", "OS_PROJECT_NAME": "admin", "TRUSTEE_USER_ID": "",
			}, "ALLOWED_DOMAINS", []string{"nowhere"},
		},
		"another cloud": {
			map[string]string{"CONNECTION_CLOUDS": testkit.KeystoneURL(t) + ",http://127.0.0.1:1/v3;region=R"},
			"CONNECTION_CLOUDS",
			[]string{"entry 2", "127.0.0.1:1", "refused"},
		},
		"an upstream": {
			map[string]string{"WAKE_URL": "http://{function}.invalid"}, "WAKE_URL", []string{"cannot be reached"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := maps.Clone(base)
			maps.Copy(env, tc.change)
			code, out := testkit.Run(t, env, "check")
			wrong := strings.Count(out, "wrong  ")
			if tc.variable == "" {
				if code != 0 || wrong != 0 || !strings.HasPrefix(lineOf(out, "OS_AUTH_URL"), "ok") {
					t.Errorf("exit %d\n%s", code, out)
				}
				return
			}
			line := lineOf(out, tc.variable)
			if code != 1 || wrong != 1 || !strings.HasPrefix(line, "wrong") ||
				!strings.Contains(out, "wrong settings: 1") {
				t.Errorf("exit %d, %d wrong, %q\n%s", code, wrong, line, out)
			}
			for _, says := range tc.says {
				if !strings.Contains(line, says) {
					t.Errorf("%q is not in %q", says, line)
				}
			}
		})
	}
}

// TestHelp names each command that docs/operation.md has, and no other.
func TestHelp(t *testing.T) {
	t.Parallel()
	code, help := testkit.Run(t, nil, "--help")
	page, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "operation.md"))
	if err != nil || code != 0 {
		t.Fatal(code, help, err)
	}
	table, _, _ := strings.Cut(string(page), "\n\nAll settings")
	commands := func(pattern, text string) (all []string) {
		for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			all = append(all, found[1])
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	want := commands("`cloudfnd ((?:[a-z]+ ?)+(?:ID)?)`", table)
	if got := commands("(?m)^  cloudfnd ([a-z]+(?: [a-zA-Z]+)*) {2,}", help); !slices.Equal(got, want) {
		t.Errorf("the help has %q, the page %q", got, want)
	}
	if code, out := testkit.Run(t, nil, "version"); code != 0 || len(strings.Fields(out)) != 1 {
		t.Errorf("the version: %d %s", code, out)
	}
	if code, out := testkit.Run(t, nil, "nonsense"); code != 1 || !strings.Contains(out, "`cloudfnd --help` lists") {
		t.Errorf("an unknown command: %d %s", code, out)
	}
}

// TestCheckReadsTheCatalog: of two endpoints the first one is used, and noted; Nova's legacy v2 is never called, so it
// is wrong unless v2.1 is beside it.
func TestCheckReadsTheCatalog(t *testing.T) {
	t.Parallel()
	nova := strings.TrimSuffix(testkit.Endpoint(t, "compute"), "/v2.1")
	alone := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(alone.Close)
	for name, tc := range map[string]struct {
		keystone       *testkit.Proxy
		variable, says string // its line
	}{
		"two endpoints": {
			testkit.Twice(t, "compute"), "OS_INTERFACE",
			`^unset +OS_INTERFACE +the catalog has 2 public endpoints of compute in the region RegionOne, and the ` +
				`first one is used: ` + nova,
		},
		"a legacy endpoint": {
			testkit.RedirectTo(t, map[string]string{"compute": nova + "/v2"}), "OS_COMPUTE_ENDPOINT_OVERRIDE", `^unset `,
		},
		"a legacy endpoint alone": {
			testkit.RedirectTo(t, map[string]string{"compute": alone.URL + "/v2"}), "OS_COMPUTE_ENDPOINT_OVERRIDE",
			`^wrong .*` + alone.URL + `/v2/ offers v2; v2.1 is needed`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, out := testkit.Run(t, testkit.Env(t, testkit.Database(t), tc.keystone.Env(t, "collector")), "check")
			line := lineOf(out, tc.variable)
			if !regexp.MustCompile(tc.says).MatchString(line) || (code != 0) != strings.HasPrefix(line, "wrong") {
				t.Errorf("exit %d, %q\n%s", code, line, out)
			}
		})
	}
}

// TestCheckNamesAllMistakes at once, in a line for each variable, and so does the start.
func TestCheckNamesAllMistakes(t *testing.T) {
	t.Parallel()
	env := testkit.Env(t, testkit.Database(t), map[string]string{
		"REQUEST_TIMEOUT": "1 minute", "EVENT_TIMEOUT": "20m", "POLL_FULL": "1s", "POLL_PAUSE": "x",
		"OS_CLOUD": "nope", "DATABASE_MAX_CONNS": "0",
	})
	code, out := testkit.Run(t, env, "check")
	for _, name := range []string{
		"REQUEST_TIMEOUT", "EVENT_TIMEOUT", "POLL_FULL", "POLL_PAUSE", "OS_CLOUD", "DATABASE_MAX_CONNS",
	} {
		if !strings.HasPrefix(lineOf(out, name), "wrong") {
			t.Errorf("%s: %q", name, lineOf(out, name))
		}
	}
	if code != 1 || !strings.Contains(out, "wrong settings: 6") {
		t.Errorf("exit %d\n%s", code, out)
	}
	env["REQUEST_TIMEOUT"], env["POLL_PAUSE"] = "", ""
	if code, out := testkit.Run(t, env); code != 1 || !strings.Contains(out, "EVENT_TIMEOUT is 20m") ||
		!strings.Contains(out, "DATABASE_MAX_CONNS is 0") {
		t.Errorf("the start: exit %d\n%s", code, out)
	}
}

// TestWrongSettingsThatCostNothing to find are found at the start.
func TestWrongSettingsThatCostNothing(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]map[string]string{
		"CONNECTION_PUBLIC_KEY is the key": {"CONNECTION_PUBLIC_KEY": testkit.SealPublicKey},
		"TRUSTEE_USER_ID is":               {"TRUSTEE_USER_ID": "the trustee"},
	} {
		env := testkit.Env(t, testkit.Database(t), change)
		if code, out := testkit.Run(t, env); code != 1 || !strings.Contains(out, want) {
			t.Errorf("exit %d, %q, want %q", code, out, want)
		}
	}
}

// TestStatusShowsWrongSettings without their names: the status needs no token.
func TestStatusShowsWrongSettings(t *testing.T) {
	t.Parallel()
	var status struct {
		Settings struct {
			OK        bool   `json:"ok"`
			CheckedAt string `json:"checked_at"`
		} `json:"settings"`
	}
	good := testkit.Start(t, testkit.Env(t, testkit.Database(t), nil), connections.Function, runconnections.Function)
	good.Get(t, "/v1/status").JSON(t, &status)
	if !status.Settings.OK || status.Settings.CheckedAt == "" {
		t.Errorf("got %+v", status)
	}
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), map[string]string{
		"OS_REGION_NAME": "RegionNone", "TRUSTEE_USER_ID": "0123",
	}), connections.Function, runconnections.Function)
	a := app.Get(t, "/v1/status")
	a.JSON(t, &status)
	if status.Settings.OK || strings.Contains(string(a.Body), "TRUSTEE") || strings.Contains(string(a.Body), "0123") {
		t.Errorf("got %s", a.Body)
	}
}
