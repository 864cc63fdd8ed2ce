package docs

import (
	"bytes"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestTheUnitIsSound checks the unit with systemd's own tools, and the rating of its sandboxing.
func TestTheUnitIsSound(t *testing.T) {
	t.Parallel()
	analyze := tool(t, "systemd-analyze", "systemd")
	unit := strings.ReplaceAll(read(t, "systemd/cloudfnd.service"), "/usr/local/bin/cloudfnd", testkit.Binary(t))
	file := filepath.Join(t.TempDir(), "cloudfnd.service")
	if err := os.WriteFile(file, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"verify", "--man=no", file},
		{"security", "--offline=true", "--threshold=15", "--no-pager", file},
	} {
		out, err := exec.Command(analyze, args...).CombinedOutput()
		if err != nil || (args[0] == "verify" && len(out) > 0) {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}

// assignments returns the NAME=VALUE lines of a file, with all values of a repeated name.
func assignments(text string) map[string][]string {
	found := map[string][]string{}
	for line := range strings.Lines(text) {
		name, value, assigns := strings.Cut(strings.TrimSpace(line), "=")
		if assigns && !strings.HasPrefix(name, "#") {
			found[name] = append(found[name], value)
		}
	}
	return found
}

// TestLongTheUnitStarts runs the commands of the unit as a user without rights, with its environment files and
// clouds.yaml, in which only CHANGE-ME and addresses are replaced.
func TestLongTheUnitStarts(t *testing.T) {
	t.Parallel()
	dir := openFolder(t)
	credentials := filepath.Join(dir, "clouds.yaml")
	copyFile(t, testkit.CloudsYAML(t), credentials, 0o444)
	unit := assignments(read(t, "systemd/cloudfnd.service"))
	env := map[string]string{}
	for _, file := range unit["EnvironmentFile"] {
		for name, values := range assignments(read(t, "systemd/"+filepath.Base(file))) {
			env[name] = values[0]
		}
	}
	actual := testkit.Env(t, testkit.EmptyDatabase(t), nil)
	for name, value := range env {
		if strings.Contains(value, "CHANGE-ME") {
			env[name] = actual[name]
		}
	}
	for _, setting := range unit["Environment"] {
		name, value, _ := strings.Cut(setting, "=")
		env[name] = strings.ReplaceAll(value, "%d", dir)
	}
	port := testkit.FreePort(t)
	maps.Copy(env, map[string]string{
		"PORT": port, "OS_CLOUD": "collector", "ALLOWED_PROJECTS": testkit.NewProject(t).ID,
	})
	if before, err := unitCommand(t, dir, unit["ExecStartPre"][0], env).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, before)
	}
	daemon := unitCommand(t, dir, unit["ExecStart"][0], env)
	var log bytes.Buffer
	daemon.Stdout, daemon.Stderr = &log, &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	t.Cleanup(func() { _ = daemon.Process.Kill() })
	client := testkit.Client{URL: "http://127.0.0.1:" + port}
	testkit.Eventually(t, stepLimit, "the daemon serves", func() bool {
		status, err := client.Status("/v1/status")
		return err == nil && status == http.StatusOK
	})
	_ = daemon.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("on SIGTERM it ended with %v:\n%s", err, log.String())
		}
	case <-time.After(stepLimit):
		t.Errorf("it did not end on SIGTERM")
	}
	testkit.NoSecretsIn(t, "the daemon", log.Bytes())
}

// openFolder creates a folder that every user can read.
func openFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cloudfn-unit-") //nolint:usetesting // no one else may look into that of the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, mode)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// unitCommand returns a command line of the unit with the binary under test. Root runs it as the user nobody.
func unitCommand(t *testing.T, dir, line string, env map[string]string) *exec.Cmd {
	t.Helper()
	binary := filepath.Join(dir, "cloudfnd")
	if _, err := os.Stat(binary); err != nil {
		copyFile(t, testkit.Binary(t), binary, 0o755)
	}
	args := strings.Fields(line)
	if args[0] != "/usr/local/bin/cloudfnd" {
		t.Fatalf("the unit starts %s", line)
	}
	args[0] = binary
	if os.Getuid() == 0 {
		setpriv := "setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all"
		args = append(strings.Fields(setpriv), args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// TestEnvironmentFilesNameWhatIsRead: configuration.md documents every variable in the files, and secrets are only in
// the file that root alone can read.
func TestEnvironmentFilesNameWhatIsRead(t *testing.T) {
	t.Parallel()
	table := read(t, "configuration.md")
	secret := regexp.MustCompile("PRIVATE|PASSWORD|DATABASE_URL")
	for file, holdsSecrets := range map[string]bool{"systemd/cloudfnd.env": false, "systemd/cloudfnd.secrets": true} {
		names := slices.Collect(maps.Keys(assignments(read(t, file))))
		if len(names) < 3 {
			t.Errorf("%s names %v", file, names)
		}
		for _, name := range names {
			if !strings.Contains(table, "\n| `"+name+"` |") {
				t.Errorf("%s names %s, which is not in configuration.md", file, name)
			}
			if secret.MatchString(name) != holdsSecrets {
				t.Errorf("%s is in %s", name, file)
			}
		}
	}
}
