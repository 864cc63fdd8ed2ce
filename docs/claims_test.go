package docs

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestClaimsOfZero: a page says that something scales from zero only where it also leads to what was measured.
func TestClaimsOfZero(t *testing.T) {
	t.Parallel()
	claim := regexp.MustCompile(`(?i)\b(from|to)\s+zero\b`)
	for _, page := range texts(t) {
		switch filepath.Base(page) {
		case "CHANGELOG.md", "measurements.md", "testing.md":
			continue
		}
		if strings.HasPrefix(page, "adr") || strings.Contains(page, "bench") {
			continue
		}
		for paragraph := range strings.SplitSeq(read(t, page), "\n\n") {
			if claim.MatchString(paragraph) && !strings.Contains(paragraph, "measurements.md#on-knative") {
				t.Errorf("%s leads to no measurement: %s", page, paragraph)
			}
		}
	}
}

// TestOneFunctionWithKn: the function that README's first screen deploys needs no variable more. make e2e runs the
// commands themselves.
func TestOneFunctionWithKn(t *testing.T) {
	t.Parallel()
	text := read(t, filepath.Join("..", "README.md"))
	first, _, _ := strings.Cut(text, "\n## ")
	_, create, _ := strings.Cut(first, "\nkn service create ")
	create, _, found := strings.Cut(create, "\ncurl ")
	if !found {
		t.Fatal("README.md deploys no function with kn before its first heading")
	}
	clouds := testkit.RedirectTo(t, nil) // a Keystone, without an account
	values := map[string]string{
		"DATABASE_URL": testkit.Database(t), "OS_AUTH_URL": clouds.URL(), "FUNCTION_TARGET": "resources",
	}
	env := map[string]string{}
	for _, v := range regexp.MustCompile(`--env ([A-Z_]+)=`).FindAllStringSubmatch(create, -1) {
		env[v[1]] = values[v[1]]
	}
	p := testkit.Spawn(t, env)
	if a := p.As(testkit.Token(t, "demo")).Get(t, "/v1/resources"); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}

// TestReleasesInOnePlace: the pages name releases of OpenStack in one chapter only, and the versions there are those
// of the code.
func TestReleasesInOnePlace(t *testing.T) {
	t.Parallel()
	release := regexp.MustCompile(`\b(Pike|Queens|Rocky|Stein|Train|Ussuri|Victoria|Wallaby|Xena|Yoga|Antelope)\b`)
	_, after, found := strings.Cut(read(t, "limits.md"), "\n## OpenStack releases\n")
	chapter, _, _ := strings.Cut(after, "\n## ")
	if !found {
		t.Fatal("limits.md has no chapter of the releases")
	}
	for _, page := range texts(t) {
		text := read(t, page)
		if filepath.Base(page) == "CHANGELOG.md" || strings.HasPrefix(page, "adr") {
			continue
		}
		if page == "limits.md" {
			text = strings.Replace(text, chapter, "", 1)
		}
		if names := release.FindAllString(text, -1); names != nil {
			t.Errorf("%s names %v: lead to limits.md#openstack-releases", page, names)
		}
	}
	code := read(t, filepath.Join("..", "shared", "openstack", "openstack.go"))
	for _, version := range regexp.MustCompile(`2\.\d+`).FindAllString(chapter, -1) {
		if !strings.Contains(code, `"`+version+`"`) {
			t.Errorf("limits.md names %s, which no call requires", version)
		}
	}
}

// TestAgesOfLongTests: CI prints how old the long tests are, also without git's history. The table has every tier.
func TestAgesOfLongTests(t *testing.T) {
	t.Parallel()
	tiers, rows, _ := strings.Cut(read(t, "testing.md"), "\n<!-- last runs")
	if row := regexp.MustCompile(`(?m)^\|.*\| [0-9a-f]{7,} \|.*$`).FindString(tiers); row != "" {
		t.Errorf("testing.md has when a tier ran in place of what it runs: %s", row)
	}
	for _, step := range []string{"test", "test-long", "e2e"} {
		if !strings.Contains(rows, "\n| `make "+step+"` | ") {
			t.Errorf("testing.md does not say when make %s ran", step)
		}
	}
	if run := read(t, filepath.Join("..", ".ci", "run")); !strings.Contains(run, "\nscripts/test-all ages\n") {
		t.Error(".ci/run does not print them")
	}
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	git := func(args ...string) string {
		return strings.TrimSpace(run("git", slices.Concat([]string{"-c", "user.name=t", "-c", "user.email=t@x"}, args)...))
	}
	ages := func() string { return run("scripts/test-all", "ages") }
	table := func(commit string) {
		write("docs/testing.md", "| `make e2e` | tests | root |\n\n"+
			"| `make e2e` | "+commit+" | 2026-01-02 | 19 | green |\n")
	}
	write("scripts/test-all", read(t, filepath.Join("..", "scripts", "test-all")))
	table("0123abc")
	if got := ages(); !strings.Contains(got, "make e2e       of unknown age: 0123abc on 2026-01-02, green\n") ||
		strings.Count(got, "make ") != 1 {
		t.Errorf("outside of a repository it prints %s", got)
	}
	git("init", "-q")
	for _, message := range []string{"first", "second", "third"} {
		git("commit", "-q", "--allow-empty", "-m", message)
	}
	if got := ages(); !strings.Contains(got, "of unknown age") {
		t.Errorf("of a commit that the clone lacks it prints %s", got)
	}
	table(git("rev-parse", "--short", "HEAD~2"))
	if got := ages(); !strings.Contains(got, "make e2e       2 commits ago: ") {
		t.Errorf("it prints %s", got)
	}
}
