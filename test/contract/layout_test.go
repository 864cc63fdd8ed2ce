package contract_test

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// functions is the folder of the functions.
var functions = filepath.Join(testkit.Root(), "functions")

// folders lists the functions' folders.
func folders(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(functions)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestTryItOfEveryREADME runs the curl line of every function's README, as a shell does. Events come first: an event
// waits for what is due soon, such as the handshake of the callback that another line makes.
func TestTryItOfEveryREADME(t *testing.T) {
	t.Parallel()
	p := testkit.Spawn(t, testkit.DaemonEnv(t, testkit.Database(t)))
	names := folders(t)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(order(a), order(b)) })
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(functions, name, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		_, after, found := bytes.Cut(text, []byte("## Try it\n\n```sh\n"))
		command, _, ended := bytes.Cut(after, []byte("\n```"))
		if !found || !ended || !bytes.HasPrefix(command, []byte("curl ")) {
			t.Errorf("functions/%s/README.md has no curl line under \"Try it\"", name)
			continue
		}
		cmd := exec.Command("sh", "-e", "-c", string(command))
		cmd.Env = append(os.Environ(), "URL="+p.URL, "TOKEN="+testkit.Token(t, "demo"), "EVENT_KEY="+testkit.EventKey,
			"no_proxy=*")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("functions/%s/README.md: %v\n%s\n%s", name, err, command, out)
		}
	}
}

// order is 0 for functions that take events, which are verbs, and 1 for the others.
func order(name string) int {
	if strings.Contains(name, "-") {
		return 0
	}
	return 1
}

// TestWhoOpensSecrets: what opens a sealed secret, and what logs in to the cloud, is read by the event functions that
// need it, and by no function that serves HTTP.
func TestWhoOpensSecrets(t *testing.T) {
	t.Parallel()
	accounts := []string{
		"collect-stats", "poll-instances", "reconcile-managed", "run-connections", "run-leases", "watch-nodes",
	}
	want := map[string][]string{
		"SEAL_PRIVATE_KEY": {"deliver-events"}, "CONNECTION_PRIVATE_KEY": {"run-connections"},
		"MANAGED_PRIVATE_KEY": {"reconcile-managed"},
		"OS_PASSWORD":         accounts, "OS_APPLICATION_CREDENTIAL_SECRET": accounts,
		"DATABASE_URL": nil, "EVENT_KEY": nil, // these open nothing
	}
	secret := regexp.MustCompile("PRIVATE|PASSWORD|SECRET|TOKEN|DATABASE_URL|_KEY$")
	harmless := []string{
		"SEAL_PUBLIC_KEY", "CONNECTION_PUBLIC_KEY", "MANAGED_PUBLIC_KEY", "AGENT_TOKEN_TTL",
		"OS_KEY", // the name of a file: of a connection to the cloud, and of no login
	}
	d := testkit.Describe(t)
	for _, v := range d.Variables {
		if !secret.MatchString(v.Name) || slices.Contains(harmless, v.Name) {
			continue
		}
		readers, known := want[v.Name]
		if !known || !slices.Equal(v.ReadBy, readers) {
			t.Errorf("%s is read by %v, want %v: if it is a new secret, say here who may hold it", v.Name, v.ReadBy,
				readers)
		}
		for _, name := range v.ReadBy {
			if slices.ContainsFunc(d.Functions, func(f run.Declaration) bool {
				return f.Name == name && f.Kind == "http"
			}) {
				t.Errorf("%s serves HTTP, and reads %s", name, v.Name)
			}
		}
		delete(want, v.Name)
	}
	for name := range want {
		t.Errorf("nothing reads %s", name)
	}
}
