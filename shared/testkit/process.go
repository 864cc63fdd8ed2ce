package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/run"
)

// Process is a copy of cloudfn in a process of its own, which can be killed.
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

// Binary builds cloudfn and gives the path of this test process's own link to it. Of all test processes that run the same code only
// the first one has to link the program.
func Binary(t testing.TB) string {
	t.Helper()
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
	defer lock.Close() // which ends the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	built := filepath.Join(dir, "functions.test")
	cmd := exec.Command("go", "build", "-trimpath", "-o", built, "./functions")
	cmd.Dir = Root()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	_ = os.Remove(link) // of a process that had the same number
	return os.Link(built, link)
}

// RemoveBinary is for TestMain, after the tests.
func RemoveBinary() {
	if binary.path != "" {
		_ = os.Remove(binary.path)
	}
}

// FreePort is a port that nobody listens on. It is below the range of which the kernel gives a port to who asks for any:
// else some other test's server could have it before the process that it is for.
func FreePort(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(10_000 + rand.IntN(20_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no port between 10000 and 30000 is free")
	return ""
}

// Spawn starts a copy with the environment, and nothing of the test's own but PATH and HOME, and waits until
// it serves.
func Spawn(t testing.TB, env map[string]string) *Process {
	t.Helper()
	port := FreePort(t)
	p := &Process{log: &bytes.Buffer{}, done: make(chan struct{}), Client: &Client{URL: "http://127.0.0.1:" + port, Key: env["EVENT_KEY"]}}
	p.cmd = exec.Command(Binary(t))
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "PORT=" + port}
	for k, v := range env {
		if v != "" {
			p.cmd.Env = append(p.cmd.Env, k+"="+v)
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Kill()
		NoSecretsIn(t, "a copy", p.log.Bytes())
	})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		resp, err := http.Get(p.URL + "/healthz")
		if err == nil {
			_ = resp.Body.Close()
			return p
		}
		select {
		case <-p.done:
			t.Fatalf("the process ended: %s", p.log)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("the process does not serve: %v", err)
		}
	}
}

// Kill ends the process at once (SIGKILL) and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Terminate asks the process to end (SIGTERM) and gives its exit code.
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

// Log is what the process printed, once it has ended.
func (p *Process) Log() string {
	<-p.done
	return p.log.String()
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Run runs cloudfn until it ends by itself and gives its exit code and what it printed.
func Run(t testing.TB, env map[string]string, args ...string) (int, string) {
	t.Helper()
	binary := Binary(t) // which may take longer than what it does
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PORT=" + FreePort(t)}
	for k, v := range env {
		if v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	out, err := cmd.CombinedOutput()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		t.Fatal(err)
	}
	NoSecretsIn(t, "a copy", out)
	return cmd.ProcessState.ExitCode(), string(out)
}

// Describe is what the binary says of itself: its functions' declarations, the variables that it reads, its routes.
func Describe(t testing.TB) (d run.Description) {
	t.Helper()
	code, out := Run(t, nil, "describe")
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 {
		t.Fatalf("functions describe: exit %d, %v: %.200s", code, err, out)
	}
	return d
}
