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

	"github.com/cloudfn/cloudfn/shared/domain"
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
		"no one listens": {
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

// TestCheckNamesAllMistakes together, in a line for each variable, and so does the start.
func TestCheckNamesAllMistakes(t *testing.T) {
	t.Parallel()
	env := testkit.Env(t, testkit.Database(t), map[string]string{
		"REQUEST_TIMEOUT": "1 minute", "EVENT_TIMEOUT": "20m", "STATS_BACKFILL": "1s", "CONSOLE_IDLE": "x",
		"OS_CLOUD": "nope", "DATABASE_MAX_CONNS": "0",
	})
	code, out := testkit.Run(t, env, "check")
	for _, name := range []string{
		"REQUEST_TIMEOUT", "EVENT_TIMEOUT", "STATS_BACKFILL", "CONSOLE_IDLE", "OS_CLOUD", "DATABASE_MAX_CONNS",
	} {
		if !strings.HasPrefix(lineOf(out, name), "wrong") {
			t.Errorf("%s: %q", name, lineOf(out, name))
		}
	}
	if code != 1 || !strings.Contains(out, "wrong settings: 6") {
		t.Errorf("exit %d\n%s", code, out)
	}
	env["REQUEST_TIMEOUT"], env["CONSOLE_IDLE"] = "", ""
	if code, out := testkit.Run(t, env); code != 1 || !strings.Contains(out, "EVENT_TIMEOUT is 20m") ||
		!strings.Contains(out, "DATABASE_MAX_CONNS is 0") {
		t.Errorf("the start: exit %d\n%s", code, out)
	}
}

// TestCheckReadsSettings as every OpenStack client does: the settings that work for one work for the daemon, and what
// does not is named.
func TestCheckReadsSettings(t *testing.T) {
	t.Parallel()
	p := testkit.BorrowProject(t)
	id, secret := p.AppCredential(t)
	account := testkit.Redirect(t).Env(t, "collector")
	noDomains := map[string]string{"OS_USER_DOMAIN_NAME": "", "OS_PROJECT_DOMAIN_NAME": ""}
	yaml := filepath.Join(t.TempDir(), "clouds.yaml")
	login := `{auth_url: "` + testkit.KeystoneURL(t) + `", username: collector, password: "` + account["OS_PASSWORD"] +
		`", project_name: ` + account["OS_PROJECT_NAME"] + `, user_domain_name: Default, user_domain_id: default}`
	text := "clouds: {vendor: {profile: nowhere, auth: " + login + ", regions: [{name: RegionOne}]}}"
	if err := os.WriteFile(yaml, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	named := map[string]string{"OS_CLOUD": "vendor", "OS_CLIENT_CONFIG_FILE": yaml, "OS_AUTH_URL": ""}
	for name, tc := range map[string]struct {
		change map[string]string
		lines  []string
	}{
		"no domains": {
			noDomains, []string{`^ok +OS_USERNAME +the user collector of the domain with the id default may`},
		},
		"no domains, and the user is in another one": {
			with(noDomains, "OS_USERNAME", "nobody"),
			[]string{`^wrong +OS_PASSWORD .*because OS_USER_DOMAIN_NAME is not set`},
		},
		"a credential beside a left-over login": {
			map[string]string{"OS_APPLICATION_CREDENTIAL_ID": id, "OS_APPLICATION_CREDENTIAL_SECRET": secret},
			[]string{`^ok +OS_APPLICATION_CREDENTIAL_ID +the application credential ` + id + ` may log in`},
		},
		"a wrong credential": {
			map[string]string{"OS_APPLICATION_CREDENTIAL_ID": id, "OS_APPLICATION_CREDENTIAL_SECRET": "wrong"},
			[]string{`^wrong +OS_APPLICATION_CREDENTIAL_SECRET .*` + id},
		},
		"a profile, and domains by id and by name": {
			named,
			[]string{`^ok +OS_CLOUD +the cloud vendor has the profile "nowhere".*; the user collector .*may log in`},
		},
		"variables beside a cloud": {
			with(with(named, "OS_CACERT", "/nonexistent"), "OS_REGION_NAME", "Nowhere"), []string{
				`^ok +OS_CLOUD .*may log in`, `^ok +OS_CACERT +ignored`, `^ok +OS_REGION_NAME +ignored`,
			},
		},
		"the cloud of another account": {
			with(named, "LEASES_OS_CLOUD", "leases"), []string{`^wrong +LEASES_OS_CLOUD .*LEASES_OS_CLOUD is "leases": .* has no such cloud`},
		},
		"another way to log in": {
			map[string]string{"OS_AUTH_TYPE": "v3oidcpassword"}, []string{`^wrong +OS_AUTH_TYPE .*must be one of`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := maps.Clone(account)
			maps.Copy(env, map[string]string{"TRUSTEE_USER_ID": "", "LEASES_OS_CLOUD": "", "NODES_OS_CLOUD": ""})
			maps.Copy(env, tc.change)
			code, out := testkit.Run(t, testkit.Env(t, testkit.Database(t), env), "check")
			isWrong := false
			for _, want := range tc.lines {
				variable := regexp.MustCompile(`[A-Z_]{3,}`).FindString(want)
				if line := lineOf(out, variable); !regexp.MustCompile(want).MatchString(line) {
					t.Errorf("%s: %q", want, line)
				}
				isWrong = isWrong || strings.HasPrefix(want, "^wrong")
			}
			if (code != 0) != isWrong {
				t.Errorf("exit %d\n%s", code, out)
			}
		})
	}
}

func with(env map[string]string, name, value string) map[string]string {
	env = maps.Clone(env)
	env[name] = value
	return env
}

// TestProjects lists and ends what projects have left that the lists do not let in.
func TestProjects(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	pool := testkit.Pool(t, database)
	if _, err := pool.Exec(t.Context(), `
insert into callbacks (project_id, id, user_id, url, status, secret)
select p, gen_random_uuid(), 'u', 'https://a.example.com', 'verified', 's' from unnest('{p1,p2}'::text[]) p`); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"DATABASE_URL": database, "ALLOWED_PROJECTS": "p2"}
	for _, tc := range []struct {
		args  []string
		code  int
		says  string
		lacks string
	}{
		{[]string{"projects"}, 0, "p1 ", "p2"},
		{[]string{"projects", "end", "p2"}, 1, `"p2" has nothing left to end`, "ended"},
		{[]string{"projects", "end"}, 1, "unknown command", "ended"},
		{[]string{"projects", "end", "p1"}, 0, "ended what project p1 has left", "p2"},
		{[]string{"projects"}, 0, "no project that is not served has left anything", "p1"},
	} {
		code, out := testkit.Run(t, env, tc.args...)
		if code != tc.code || !strings.Contains(out, tc.says) || strings.Contains(out, tc.lacks) {
			t.Errorf("%v: exit %d, %s", tc.args, code, out)
		}
	}
	left := testkit.Scalar[string](t, pool, "select string_agg(project_id, ' ') from callbacks")
	if left != "p2" {
		t.Errorf("callbacks are left of %s", left)
	}
}

// TestKeysStatus names keys that stored secrets need and the environment lacks.
func TestKeysStatus(t *testing.T) {
	t.Parallel()
	database := testkit.Database(t)
	testkit.AddCallback(t, testkit.Pool(t, database), "p1", "https://a.example.com", domain.CallbackVerified, "whsec_x", "")
	env := map[string]string{"DATABASE_URL": database, "SEAL_PRIVATE_KEY": testkit.SealPrivateKey}
	code, out := testkit.Run(t, env, "keys", "status")
	if held := regexp.MustCompile(`SEAL_PRIVATE_KEY +[0-9a-f]{16} +held +1`); code != 0 || !held.MatchString(out) {
		t.Errorf("with the key: exit %d, %s", code, out)
	}
	env["SEAL_PRIVATE_KEY"] = testkit.ManagedPrivateKey
	code, out = testkit.Run(t, env, "keys", "status")
	missing := regexp.MustCompile(`SEAL_PRIVATE_KEY +([0-9a-f]{16}) +missing +1`).FindStringSubmatch(out)
	if code != 1 || missing == nil || !strings.Contains(out, "SEAL_PRIVATE_KEY lacks "+missing[1]) {
		t.Errorf("without the key: exit %d, %s", code, out)
	}
}

// TestTrustee says who the service account is, also one without any role, and says in one line why it cannot.
func TestTrustee(t *testing.T) {
	t.Parallel()
	env := func(more map[string]string) map[string]string {
		all := map[string]string{"OS_CLIENT_CONFIG_FILE": testkit.CloudsYAML(t)}
		maps.Copy(all, more)
		return all
	}
	known := env(map[string]string{"OS_CLOUD": "collector"})
	if code, out := testkit.Run(t, known, "trustee"); code != 0 || out != "TRUSTEE_USER_ID="+testkit.Trustee(t)+"\n" {
		t.Errorf("exit %d, %q", code, out)
	}
	nobody := env(map[string]string{"OS_CLOUD": "delegate"})
	if code, out := testkit.Run(t, nobody, "trustee"); code != 0 || !strings.HasPrefix(out, "TRUSTEE_USER_ID=") ||
		len(out) < 40 || out == "TRUSTEE_USER_ID="+testkit.Trustee(t)+"\n" {
		t.Errorf("without a role: exit %d, %q", code, out)
	}
	password := testkit.Canary("no-such-password")
	for want, more := range map[string]map[string]string{
		"no service account": {"OS_AUTH_URL": "http://127.0.0.1:1/v3"},
		"keystone cannot be reached": {
			"OS_AUTH_URL": "http://127.0.0.1:1/v3", "OS_USERNAME": "x", "OS_PASSWORD": password,
			"OS_USER_DOMAIN_NAME": "Default",
		},
		"no application credential": {
			"OS_AUTH_URL": "http://127.0.0.1:1/v3", "OS_APPLICATION_CREDENTIAL_ID": "x",
			"OS_APPLICATION_CREDENTIAL_SECRET": password,
		},
		"OS_CLOUD is \"nope\"": {"OS_CLOUD": "nope"},
	} {
		if code, out := testkit.Run(t, env(more), "trustee"); code != 1 || !strings.Contains(out, want) ||
			strings.Count(out, "\n") != 1 {
			t.Errorf("%v: exit %d, %q, want one line with %q", more, code, out, want)
		}
	}
}
