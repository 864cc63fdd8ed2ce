package process_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// loopbackDNS has 127.0.0.1 for every name, as a cluster's DNS has an address for every function.
func loopbackDNS(context.Context, string, string) (net.Conn, error) {
	ours, server := net.Pipe()
	go func() {
		defer server.Close()
		query := make([]byte, 512)
		if n, err := server.Read(query); err != nil || n < 2+12+5 {
			return
		}
		query = query[2:]                              // its length comes first, as over TCP
		end := 12 + bytes.IndexByte(query[12:], 0) + 5 // behind the header, the name, its type and class
		reply := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
		if query[end-3] == 1 { // type A
			reply[7] = 1 // answer: the same name, A, IN, 60 s, 4 bytes
			reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1)
		}
		_, _ = server.Write(append([]byte{0, byte(len(reply))}, reply...))
	}()
	return ours, nil
}

// spawnGateway starts a gateway before a daemon, in a process of its own, and gives a client for it.
func spawnGateway(t *testing.T, daemon *testkit.Process) (*testkit.Client, *exec.Cmd, *bytes.Buffer) {
	t.Helper()
	return spawnSelf(t, map[string]string{"GATEWAY_UPSTREAM": upstream(daemon.URL)}, "gateway")
}

// upstream is where a process that spawnSelf has started finds all functions at one address.
func upstream(url string) string { return strings.Replace(url, "127.0.0.1", "{function}.fn.test", 1) }

// spawnSelf starts what passes requests on, in a process of its own to which every name is this machine, and gives a
// client for it.
func spawnSelf(t *testing.T, env map[string]string, args ...string) (*testkit.Client, *exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd, logs := exec.Command(self, args...), &bytes.Buffer{}
	cmd.Env = []string{"CLOUDFN_TEST_GATEWAY=1", "HOST=127.0.0.1", "PORT=0"}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = logs, logs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	app := &testkit.Client{}
	testkit.Eventually(t, 10*time.Second, "it serves", func() bool {
		port := testkit.ListeningPort(cmd.Process.Pid)
		if port == "" {
			return false
		}
		app.URL = "http://127.0.0.1:" + port
		_, err := app.Try(t, "GET", "/healthz", "")
		return err == nil
	})
	return app, cmd, logs
}

// TestGateway answers as what is behind it does, and on SIGTERM finishes what it has begun.
func TestGateway(t *testing.T) {
	t.Parallel()
	token := testkit.Token(t, "demo")
	database := testkit.Database(t)
	env, calls := slowNova(t, 1500*time.Millisecond)
	env["STATS_BACKFILL"] = "1h"
	gateway, cmd, logs := spawnGateway(t, testkit.Spawn(t, testkit.Env(t, database, env)))
	for path, want := range map[string]int{
		"/v1/stats": 200, "/v1/requests?limit=0": 400, "/v1/launch/" + uuid.NewString(): 404, "/v1/status": 200,
		"/v1/openapi.yaml": 200,
		"/v1//servers":     404, "/v1/nothing": 404, "/": 302, "/console/": 200, "/nothing": 404,
	} {
		if a := gateway.As(token).Get(t, path); a.Status != want {
			t.Errorf("%s: got %d %s, want %d", path, a.Status, a.Body, want)
		}
	}
	if a := gateway.As(token).Post(t, "/v1/launch", strings.Repeat(" ", 16<<20)); a.Status != 413 {
		t.Errorf("a large body: got %d %s", a.Status, a.Body)
	}
	answers := make([]testkit.Answer, 8)
	before := calls.Load()
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = gateway.As(token).Get(t, "/v1/servers?limit=1") })
	}
	testkit.Eventually(t, 10*time.Second, "all requests are at Nova", func() bool {
		return calls.Load() >= before+int64(len(answers))
	})
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, logs)
	}
	all.Wait()
	conn := testkit.Connect(t, database)
	for _, a := range answers {
		id := a.Header.Get("X-Request-Id")
		n := testkit.Scalar[int](t, conn, "select count(*)::int from requests where request_id = $1 and status = 200",
			id)
		if a.Status != 200 || n != 1 || strings.Count(logs.String(), id) != 1 {
			t.Errorf("got %d with %d rows, and in the gateway's log: %s", a.Status, n, logs)
		}
	}
}
