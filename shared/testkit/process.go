package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/run"
)

// Process is cloudfn in a process of its own, which can be killed.
type Process struct {
	*Client
	cmd  *exec.Cmd
	log  *bytes.Buffer
	done chan struct{}
}

var binary struct {
	once sync.Once
	path string
	err  error
}

// built is the folder of the programs that scripts/gotest has built for the run; "" for a test that go test runs alone.
var built = os.Getenv("TEST_PROGRAMS")

// Program returns the path of a program that tests start: one of those that scripts/gotest builds.
func Program(t testing.TB, name string) string {
	t.Helper()
	if built != "" {
		return filepath.Join(built, name)
	}
	return script(t, "gotest", "program", name)
}

// Binary builds cloudfn, and returns the path of this test process's own link to it. Only the first test process has to
// link the program, and none of a run of scripts/gotest.
func Binary(t testing.TB) string {
	t.Helper()
	if built != "" {
		return Program(t, "functions")
	}
	binary.once.Do(func() {
		dir := filepath.Join(Root(), ".local", "bin")
		binary.path = filepath.Join(dir, fmt.Sprintf("functions.%d", os.Getpid()))
		binary.err = build(dir, binary.path)
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}

func build(dir, link string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "functions.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // this releases the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	built := filepath.Join(dir, "functions.test")
	cmd := exec.Command("go", "build", "-o", built, "./functions")
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	_ = os.Remove(link) // of an earlier process with the same id
	return os.Link(built, link)
}

// RemoveBinary is for TestMain, after the tests.
func RemoveBinary() {
	if binary.path != "" {
		_ = os.Remove(binary.path)
	}
}

// Spawn starts cloudfn with the environment and the test's PATH and HOME, on a port that the kernel chooses, and waits
// until it serves.
func Spawn(t testing.TB, env map[string]string) *Process {
	t.Helper()
	p := &Process{log: &bytes.Buffer{}, done: make(chan struct{}), Client: &Client{Key: env["EVENT_KEY"]}}
	p.cmd = exec.Command(Binary(t))
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PORT=0"}
	for k, v := range env {
		if v != "" {
			p.cmd.Env = append(p.cmd.Env, k+"="+v)
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	check(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Kill()
		NoSecretsIn(t, "a process", p.log.Bytes())
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) { // a busy machine
		if port := ListeningPort(p.PID()); port != "" {
			p.URL = "http://127.0.0.1:" + port
			// In a process of one function, the first request shows it the server that it drains.
			if resp, err := http.Get(p.URL + "/healthz"); err == nil {
				_ = resp.Body.Close()
				return p
			}
		}
		select {
		case <-p.done:
			t.Fatalf("the process ended: %s", p.log)
		default:
		}
		if time.Now().After(end) {
			t.Fatal("the process does not serve")
		}
	}
}

// Kill ends the process at once (SIGKILL) and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Terminate sends SIGTERM, and returns the exit code.
func (p *Process) Terminate(t testing.TB, limit time.Duration) int {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		t.Fatalf("the process did not end within %s of SIGTERM", limit)
		return -1
	}
}

// Log returns the output of the process, after its end.
func (p *Process) Log() string {
	<-p.done
	return p.log.String()
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Run runs cloudfn until it ends by itself, and returns its exit code and output.
func Run(t testing.TB, env map[string]string, args ...string) (int, string) {
	t.Helper()
	binary := Binary(t) // may take longer than the run
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PORT=0"}
	for k, v := range env {
		if v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	out, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatal(err)
	}
	NoSecretsIn(t, "a process", out)
	return cmd.ProcessState.ExitCode(), string(out)
}

// Describe returns the output of functions describe.
func Describe(t testing.TB) (d run.Description) {
	t.Helper()
	code, out := Run(t, nil, "describe")
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 {
		t.Fatalf("functions describe: exit %d, %v: %.200s", code, err, out)
	}
	return d
}
