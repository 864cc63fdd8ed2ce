package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/postgres"
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

// Kill ends the process immediately (SIGKILL) and waits until it has ended.
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

// Run runs cloudfn until it ends automatically, and returns its exit code and output.
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

// Env returns the environment of a process under test: the sandbox cloud's service account, and a database. Keys of
// more override it; a value of "" removes a key.
func Env(t testing.TB, databaseURL string, more map[string]string) map[string]string {
	t.Helper()
	env := map[string]string{
		"DATABASE_URL": databaseURL, "OS_CLIENT_CONFIG_FILE": CloudsYAML(t), "OS_CLOUD": "collector",
		"HOST": "127.0.0.1", "EVENT_KEY": EventKey,
		"RESOURCE_TIMEOUT": "50s", // the sandbox is slow when many tests run
		"SEAL_PUBLIC_KEY":  SealPublicKey, "SEAL_PRIVATE_KEY": SealPrivateKey, "CALLBACK_ALLOW": "127.0.0.0/8,::1",
		"CONNECTION_PUBLIC_KEY": ConnectionPublicKey, "CONNECTION_PRIVATE_KEY": ConnectionPrivateKey,
		"MANAGED_PUBLIC_KEY": ManagedPublicKey, "MANAGED_PRIVATE_KEY": ManagedPrivateKey,
		"TRUSTEE_USER_ID": Trustee(t), "AGENT_URL": "http://agents.invalid",
		"LEASES_OS_CLOUD": "leases", "NODES_OS_CLOUD": "leases",
		// All tests come from one address, and some send more than any client does.
		"ADDRESS_RATE_LIMIT": "10000", "PROJECT_RATE_LIMIT": "10000",
		"SIGN_IN_RATE_LIMIT": "10000", "LAUNCH_RATE_LIMIT": "100000", "CALLBACK_TEST_RATE_LIMIT": "10000",
		"CHANGE_RATE_LIMIT": "10000", "DECLARATION_RATE_LIMIT": "100000", "EVENT_RATE_LIMIT": "100000",
	}
	maps.Copy(env, more)
	return env
}

// DaemonEnv returns the environment of a daemon whose own ticks count one project only, to spare the sandbox.
func DaemonEnv(t testing.TB, databaseURL string) map[string]string {
	t.Helper()
	return Env(t, databaseURL, map[string]string{"OS_CLOUD": "demo", "STATS_BACKFILL": "1h"})
}

// EventKey is the key of events to processes under test.
const EventKey = "test-event-key"

// The key pair for secrets of callbacks in processes under test.
const (
	SealPublicKey  = "sealpub_PJgIja4HMTeNZpv1S9F7kPmi6RY_mwq1UapCnFDyzjA"
	SealPrivateKey = "sealkey_UJetRWiZuBNDBaI4ZPonx22-9LUuFDyXUHdtPy3TnnQ"
)

// The key pair for delegated credentials, which only run-connections decrypts.
const (
	ConnectionPublicKey  = "sealpub_8nvsuXTk8b3VLy6LzQkH09jNzrPa6d_E83AnEFGkiR4"
	ConnectionPrivateKey = "sealkey_oPDYyuUMa2PCc-ZxBgoh2_Z39InbLR1irH9oFfndn0I"
)

// The key pair for secrets of managed resources, which only reconcile-managed decrypts.
const (
	ManagedPublicKey  = "sealpub_J5swBbwHdScKr3fRzDqNMNTJdKQG9I5DjE0hUmVS5zE"
	ManagedPrivateKey = "sealkey_6LZJDJ4JhW-h5yEhzjZa4HND0CsnQy4tWG-QhTnMFWw"
)

var trustee struct {
	sync.Mutex
	id string
}

// Trustee returns the id of the service account, the trustee of all trusts.
func Trustee(t testing.TB) string {
	t.Helper()
	trustee.Lock()
	defer trustee.Unlock()
	if trustee.id == "" {
		user := must(Login(t, "collector").GetAuthResult().(tokens.CreateResult).ExtractUser())(t)
		trustee.id = user.ID
	}
	return trustee.id
}

// texts returns the API description that the binary embeds.
func texts(t testing.TB) run.Texts {
	t.Helper()
	text := must(os.ReadFile(filepath.Join(Root(), "functions", "openapi.yaml")))(t)
	return run.Texts{OpenAPI: text}
}

// Start serves the functions in this process, and returns a client for them. Their database role has the rights that
// they declare, and no others.
func Start(t testing.TB, env map[string]string, functions ...run.Function) *Client {
	t.Helper()
	ctx := context.Background()
	env = maps.Clone(env)
	env["DATABASE_URL"] = As(t, env["DATABASE_URL"], functions...)
	p := must(run.New(ctx, envconfig.MapLookuper(env), texts(t), logs(), functions...))(t)
	server := httptest.NewServer(p.Handler())
	t.Cleanup(func() {
		server.Close()
		p.Close(ctx)
		inProcess.noSecrets(t)
	})
	return &Client{URL: server.URL, Key: env["EVENT_KEY"]}
}

// As returns the URL of the database for a new role with the rights that the functions declare. It returns the URL as
// it is for a database that is not a local one.
func As(t testing.TB, database string, functions ...run.Function) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil || u.Query().Get("host") == "" {
		return database
	}
	var rights []map[string]string
	for _, f := range functions {
		rights = append(rights, run.Describe(f).Rights())
	}
	role := fmt.Sprintf("fn_%x", uuid.New().ID())
	conn := Connect(t, database)
	must(conn.Exec(t.Context(), "create role "+role+";"+postgres.Grants(role, rights...)))(t)
	t.Cleanup(func() {
		if _, err := conn.Exec(context.Background(), "drop owned by "+role+"; drop role "+role); err != nil {
			t.Error(err)
		}
	})
	query := u.Query()
	query.Set("role", role)
	u.RawQuery = query.Encode()
	return u.String()
}

// Chromium returns the browser for the tests in test/browser. A failure says how to install what is missing.
func Chromium(t testing.TB) string {
	t.Helper()
	const advice = "run scripts/browser up"
	if _, err := exec.LookPath("node"); err != nil {
		t.Fatalf("Node.js is not installed: %s (%v)", advice, err)
	}
	if _, err := os.Stat(filepath.Join(Root(), "test", "browser", "node_modules", "playwright-core")); err != nil {
		t.Fatalf("the packages of test/browser/ are not installed: %s (%v)", advice, err)
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("Chromium is not installed: %s (%v)", advice, err)
	}
	return chromium
}

// FreePort returns a port for a program that must be given one, and reserves it until the test ends: no other test of
// this user gets it. The port is below the kernel's range of ephemeral ports: another process could be given one of
// those first. A program that can listen on port 0 needs no such port: see ListeningPort.
func FreePort(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := 10_000 + rand.IntN(20_000)
		reservation := reservePort(t, port)
		if reservation == nil {
			continue
		}
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = l.Close()
			t.Cleanup(func() { _ = reservation.Close() }) // this releases the port
			return strconv.Itoa(port)
		}
		_ = reservation.Close()
	}
	t.Fatal("no port between 10000 and 30000 is free")
	return ""
}

// reservePort locks one byte of a file that all tests of the user share, and returns nil if the byte is locked.
func reservePort(t testing.TB, port int) *os.File {
	t.Helper()
	// F_OFD_SETLK, which package syscall lacks: the lock belongs to the open file, not to the process, so two tests of
	// one process exclude each other as well.
	const setLock = 37
	name := filepath.Join(os.TempDir(), fmt.Sprintf("cloudfn-test-ports.%d.lock", os.Getuid()))
	file := must(os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600))(t)
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: int64(port), Len: 1}
	if syscall.FcntlFlock(file.Fd(), setLock, &lock) != nil {
		_ = file.Close()
		return nil
	}
	return file
}

// ListeningPort returns the TCP port that a process listens on, or "" until it does. It is for programs that listen
// on port 0 and cannot report which port they got.
func ListeningPort(pid int) string {
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(fds) // none after the end of the process
	inodes := map[string]bool{}
	for _, fd := range entries {
		link, _ := os.Readlink(filepath.Join(fds, fd.Name()))
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	if len(inodes) == 0 {
		return ""
	}
	for _, table := range []string{"tcp", "tcp6"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for line := range strings.Lines(string(text)) {
			// The columns of proc_pid_net(5): 1 local_address, 3 st, 9 inode. State 0A is LISTEN.
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && inodes[f[9]] {
				_, hex, _ := strings.Cut(f[1], ":")
				if port, err := strconv.ParseUint(hex, 16, 16); err == nil {
					return strconv.FormatUint(port, 10)
				}
			}
		}
	}
	return ""
}
