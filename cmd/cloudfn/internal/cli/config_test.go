package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
)

// TestContexts: flags go before the context that a flag or a variable names, and CLOUDFN_URL before the current one.
func TestContexts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a", "config.yaml")
	var out bytes.Buffer
	run := func(env map[string]string, args ...string) (a *App, err error) {
		t.Helper()
		out.Reset()
		a = &App{Out: &out, Err: &bytes.Buffer{}, Env: func(name string) (string, bool) {
			if name == "CLOUDFN_CONFIG" {
				return file, true
			}
			value, found := env[name]
			return value, found
		}}
		seen := &cobra.Command{Use: "seen", RunE: func(*cobra.Command, []string) error { return nil }}
		seen.ValidArgsFunction = a.Complete(1, a.Cached("", func(context.Context) ([]string, error) {
			return []string{a.URL}, nil
		}))
		root := a.Root("cloudfn", func(a *App) []*cobra.Command { return []*cobra.Command{ConfigCommand(a), seen} })
		root.SetArgs(args)
		return a, root.ExecuteContext(t.Context())
	}
	done := func(args ...string) string {
		t.Helper()
		if _, err := run(nil, args...); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out.String()
	}
	if text := done("config", "list", "-o", "name"); text != "" {
		t.Errorf("without a file: %q", text)
	}
	done("config", "set", "prod", "--url", "https://prod.example.com", "--os-cloud", "prod", "--cacert", "/ca.pem")
	done("config", "set", "test", "--url", "https://test.example.com")
	done("config", "set", "prod", "--os-cloud", "p2") // the rest stays
	for _, c := range []struct {
		args            string
		env             map[string]string
		url, cloud, pem string
	}{
		{"", nil, "https://prod.example.com", "p2", "/ca.pem"},
		{"--context test", nil, "https://test.example.com", "", ""},
		{"", map[string]string{"OS_CLOUD": "env", "CLOUDFN_CACERT": "/env.pem"}, "https://prod.example.com", "p2", "/ca.pem"},
		{"--os-cloud x", nil, "https://prod.example.com", "x", "/ca.pem"},
		{"--url http://u", nil, "http://u", "", ""},
		{"", map[string]string{"CLOUDFN_URL": "http://env", "OS_CLOUD": "env"}, "http://env", "", ""},
		{"", map[string]string{"CLOUDFN_CONTEXT": "test", "CLOUDFN_URL": "http://env"}, "https://test.example.com", "", ""},
		{"--context prod", map[string]string{"CLOUDFN_CONTEXT": "test"}, "https://prod.example.com", "p2", "/ca.pem"},
		{"--context prod --url http://u", nil, "http://u", "p2", ""},
	} {
		a, err := run(c.env, strings.Fields("seen "+c.args)...)
		if err != nil || a.URL != c.url || a.cloud != c.cloud || a.caCert != c.pem {
			t.Errorf("%q with %v: got %s, %s, %s, %v", c.args, c.env, a.URL, a.cloud, a.caCert, err)
		}
	}
	if text := done("config", "list", "-q"); text != "prod\ntest\n" {
		t.Errorf("quiet: %q", text)
	}
	if _, err := run(nil, "config", "list", "-q", "-o", "json"); err == nil {
		t.Error("quiet JSON was printed")
	}
	done("config", "use", "test")
	if text := done("config", "list", "-o", "csv"); text != "current,name,url,os_cloud,cacert\n"+
		",prod,https://prod.example.com,p2,/ca.pem\n*,test,https://test.example.com,,\n" {
		t.Errorf("got %q", text)
	}
	for name, want := range map[string]string{ // no login is sent where it was not meant to go
		"prod": "https://prod.example.com\n", "test": "https://test.example.com\n",
		"absent": "_activeHelp_ no completions: unknown context",
	} {
		if text := done("__complete", "--context", name, "seen", ""); !strings.HasPrefix(text, want) {
			t.Errorf("completion in the context %s: %q", name, text)
		}
	}
	for _, args := range []string{"config use absent", "seen --context absent", "config delete absent"} {
		a, err := run(nil, strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), "expected one of prod, test") || a.Code(err) != exit.NotFound {
			t.Errorf("%s: %v", args, err)
		}
	}
	for _, args := range []string{"config list --context test", "config list -q -o table"} {
		if a, err := run(nil, strings.Fields(args)...); a.Code(err) != exit.Usage {
			t.Errorf("%s: %v", args, err)
		}
	}
	done("config", "delete", "test", "prod")
	if a, err := run(nil, "seen"); err != nil || a.URL != DefaultURL {
		t.Errorf("without a context: %s, %v", a.URL, err)
	}
	if err := os.WriteFile(file, []byte("contexts: {x: {uri: wrong}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := run(nil, "seen"); err == nil || !strings.Contains(err.Error(), file) ||
		!strings.Contains(err.Error(), "uri") {
		t.Errorf("a wrong file: %v", err)
	}
	for _, args := range []string{"config", "config list --help", "completion bash", "__complete config use "} {
		if _, err := run(nil, strings.Split(args, " ")...); err != nil {
			t.Errorf("%s, with a wrong file: %v", args, err)
		}
	}
}

// TestConcurrentContexts: of many commands that change the file, each finds the changes of those before.
func TestConcurrentContexts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	run := func(args ...string) error {
		a := &App{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}, Env: func(name string) (string, bool) {
			return file, name == "CLOUDFN_CONFIG"
		}}
		root := a.Root("cloudfn", func(a *App) []*cobra.Command { return []*cobra.Command{ConfigCommand(a)} })
		root.SetArgs(args)
		return root.ExecuteContext(t.Context())
	}
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			if err := run("config", "set", fmt.Sprintf("c%02d", n)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	a := &App{Env: func(string) (string, bool) { return file, true }}
	if found, err := a.readContexts(); err != nil || len(found.Contexts) != 20 {
		t.Errorf("%d contexts are left of 20: %v", len(found.Contexts), err)
	}
	if left, _ := os.ReadDir(filepath.Dir(file)); len(left) != 1 {
		t.Errorf("%d files are left", len(left))
	}
}
