package process_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
