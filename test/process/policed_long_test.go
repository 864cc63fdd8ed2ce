package process_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// policed is another process of a service of the sandbox, with a policy that a test changes.
type policed struct{ url, policy string }

func sandboxDir(t *testing.T) string { t.Helper(); return filepath.Dir(testkit.CloudsYAML(t)) }

// policedService runs a service once more, with its configuration files.
func policedService(t *testing.T, name, entry, portOption string, files ...string) policed {
	t.Helper()
	dir, lib := t.TempDir(), filepath.Join(sandboxDir(t), "lib")
	p, port := newPoliced(t, dir)
	conf := filepath.Join(dir, "policed.conf")
	text := fmt.Sprintf("[DEFAULT]\n%s = %s\n[oslo_policy]\npolicy_file = %s\n", portOption, port, p.policy)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{filepath.Join(lib, "svc.py"), name, entry}
	for _, file := range append(files, conf) {
		args = append(args, "--config-file", file)
	}
	p.serve(t, exec.Command("/usr/bin/python3", args...))
	return p
}

// newPolicedPlacement runs Placement once more.
func newPolicedPlacement(t *testing.T) policed {
	t.Helper()
	dir, sandbox := t.TempDir(), sandboxDir(t)
	p, port := newPoliced(t, dir)
	text, err := os.ReadFile(filepath.Join(sandbox, "conf", "placement", "placement.conf"))
	if err == nil {
		text = fmt.Appendf(text, "\n[oslo_policy]\npolicy_file = %s\n", p.policy)
		err = os.WriteFile(filepath.Join(dir, "placement.conf"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/usr/bin/python3", filepath.Join(sandbox, "lib", "sandbox_wsgi.py"),
		"placement.wsgi:init_application", "127.0.0.1", port, "4")
	cmd.Env = []string{"OS_PLACEMENT_CONFIG_DIR=" + dir}
	p.serve(t, cmd)
	return p
}

func newPoliced(t *testing.T, dir string) (p policed, port string) {
	t.Helper()
	port = testkit.FreePort(t)
	p = policed{"http://127.0.0.1:" + port, filepath.Join(dir, "policy.yaml")}
	p.allow(t)
	return p, port
}

// serve starts the process, and waits until it answers. It ends with the test.
func (p policed) serve(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Env = append(append(os.Environ(), cmd.Env...), "PYTHONPATH="+filepath.Join(sandboxDir(t), "lib"),
		"PYTHONWARNINGS=ignore")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	testkit.Eventually(t, 2*time.Minute, "another process serves "+p.url, func() bool {
		time.Sleep(time.Second)
		resp, err := http.Get(p.url + "/")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode < http.StatusInternalServerError
	})
}

// allow replaces the policy. The service reads it before the next call, when the file's time has changed.
func (p policed) allow(t *testing.T, lines ...string) {
	t.Helper()
	text := []byte(strings.Join(append(lines, `"unused": "@"`), "\n") + "\n")
	next := p.policy + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, p.policy); err != nil {
		t.Fatal(err)
	}
}
