package contract_test

import (
	"bufio"
	"bytes"
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

// TestEveryFunctionHasTheSameFiles, so that who knows one knows all, and is registered under its folder's name.
func TestEveryFunctionHasTheSameFiles(t *testing.T) {
	t.Parallel()
	registered := run.Names()
	for _, name := range folders(t) {
		for _, file := range []string{"README.md", "config.go", "service.go", "handler_test.go"} {
			if _, err := os.Stat(filepath.Join(functions, name, file)); err != nil {
				t.Errorf("functions/%s has no %s", name, file)
			}
		}
		if found, _ := filepath.Glob(filepath.Join(functions, name, "h*[pr].go")); len(found) == 0 { // http.go or handler.go
			t.Errorf("functions/%s has neither http.go nor handler.go", name)
		}
		if _, err := os.Stat(filepath.Join(functions, "..", "knative", "services", name+".yaml")); err != nil {
			t.Errorf("knative/services/%s.yaml is missing: nobody could deploy it", name)
		}
		if !slices.Contains(registered, name) {
			t.Errorf("functions/%s is not registered: main.go must import it", name)
		}
	}
	if len(registered) != len(folders(t)) {
		t.Errorf("registered are %v", registered)
	}
}

// TestTryItOfEveryREADME runs the curl line of every function's README, as a shell does.
func TestTryItOfEveryREADME(t *testing.T) {
	t.Parallel()
	p := testkit.Spawn(t, testkit.DaemonEnv(t, testkit.Database(t)))
	for _, name := range folders(t) {
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
		cmd.Env = append(os.Environ(), "URL="+p.URL, "TOKEN="+testkit.Token(t, "demo"), "EVENT_KEY="+testkit.EventKey, "no_proxy=*")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("functions/%s/README.md: %v\n%s\n%s", name, err, command, out)
		}
	}
}

// TestREADMENamesEveryVariable compares the table of docs/configuration.md with the configurations.
func TestREADMENamesEveryVariable(t *testing.T) {
	t.Parallel()
	documented := map[string][2]string{} // the default and who reads it, by variable
	file, err := os.Open(filepath.Join(functions, "..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		cells := strings.Split(lines.Text(), "|")
		if len(cells) == 6 && strings.HasPrefix(cells[1], " `") {
			documented[strings.Trim(cells[1], " `")] = [2]string{strings.Trim(cells[2], " `"), strings.TrimSpace(cells[3])}
		}
	}
	for _, v := range run.Variables() {
		readBy := "all"
		if v.ReadBy != nil {
			readBy = strings.Join(v.ReadBy, ", ")
		}
		if said := documented[v.Name]; said != [2]string{v.Default, readBy} {
			t.Errorf("docs/configuration.md says %q of %s, it is %q by default and read by %s", said, v.Name, v.Default, readBy)
		}
		delete(documented, v.Name)
	}
	for name := range documented {
		t.Errorf("docs/configuration.md lists %s, which nothing reads", name)
	}
}

// TestWhoOpensSecrets: what opens a sealed secret, and what logs in to the cloud, is read by the event functions that need it, and
// by no function that serves HTTP.
func TestWhoOpensSecrets(t *testing.T) {
	t.Parallel()
	accounts := []string{"collect-stats", "poll-instances", "run-connections"}
	want := map[string][]string{
		"SEAL_PRIVATE_KEY": {"deliver-events"}, "CONNECTION_PRIVATE_KEY": {"run-connections"},
		"OS_PASSWORD": accounts, "OS_APPLICATION_CREDENTIAL_SECRET": accounts,
		"DATABASE_URL": nil, "EVENT_KEY": nil, // these open nothing
	}
	secret := regexp.MustCompile("PRIVATE|PASSWORD|SECRET|TOKEN|DATABASE_URL|_KEY$")
	harmless := []string{"SEAL_PUBLIC_KEY", "CONNECTION_PUBLIC_KEY", "TOKEN_CACHE_TTL", "AGENT_TOKEN_TTL"}
	for _, v := range run.Variables() {
		if !secret.MatchString(v.Name) || slices.Contains(harmless, v.Name) {
			continue
		}
		readers, known := want[v.Name]
		if !known || !slices.Equal(v.ReadBy, readers) {
			t.Errorf("%s is read by %v, want %v: if it is a new secret, say here who may hold it", v.Name, v.ReadBy, readers)
		}
		for _, name := range v.ReadBy {
			if !slices.Contains(run.EventNames(), name) {
				t.Errorf("%s serves HTTP, and reads %s", name, v.Name)
			}
		}
		delete(want, v.Name)
	}
	for name := range want {
		t.Errorf("nothing reads %s", name)
	}
}
