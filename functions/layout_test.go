package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// folders lists the functions' folders.
func folders(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(".")
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
		for _, file := range []string{"README.md", "config.go", "handler.go", "service.go", "handler_test.go"} {
			if _, err := os.Stat(filepath.Join(name, file)); err != nil {
				t.Errorf("functions/%s has no %s", name, file)
			}
		}
		if _, err := os.Stat(filepath.Join("..", "knative", "services", name+".yaml")); err != nil {
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
	p := testkit.Spawn(t, daemonEnv(t, testkit.Database(t)))
	for _, name := range folders(t) {
		text, err := os.ReadFile(filepath.Join(name, "README.md"))
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

// TestREADMENamesEveryVariable holds the README's table of environment variables against the configurations.
func TestREADMENamesEveryVariable(t *testing.T) {
	t.Parallel()
	documented := map[string]string{} // the default, by variable
	file, err := os.Open(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		cells := strings.Split(lines.Text(), "|")
		if len(cells) == 6 && strings.HasPrefix(cells[1], " `") {
			documented[strings.Trim(cells[1], " `")] = strings.Trim(cells[2], " `")
		}
	}
	for _, v := range run.Variables() {
		byDefault, ok := documented[v.Name]
		if !ok {
			t.Errorf("README.md does not list %s (%s)", v.Name, v.Function)
		} else if byDefault != v.Default {
			t.Errorf("README.md says that %s is %q by default, it is %q", v.Name, byDefault, v.Default)
		}
		delete(documented, v.Name)
	}
	for name := range documented {
		t.Errorf("README.md lists %s, which nothing reads", name)
	}
}
