package nodes

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestSlowReportsLeaveSlots: an address without any credential that occupies requests is refused before a pod is full.
func TestSlowReportsLeaveSlots(t *testing.T) {
	t.Parallel()
	app := testkit.Start(t, testkit.Env(t, testkit.Database(t), map[string]string{
		"FUNCTION_TARGET": "nodes", "TRUSTED_PROXIES": "127.0.0.1",
	}), Function)
	server, err := url.Parse(app.URL)
	if err != nil {
		t.Fatal(err)
	}
	const path, slow = "/v1/nodes/x/heartbeat", "192.0.2.1"
	occupy := func() {
		t.Helper()
		conn, err := net.Dial("tcp", server.Host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"X-Forwarded-For: %s\r\nContent-Length: 1000\r\n\r\n{", path, slow); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	for range Function.Scale.PerSource() {
		occupy()
	}
	report := func(address string) testkit.Answer {
		return app.Post(t, path, `{"status":"up"}`, "X-Forwarded-For", address)
	}
	testkit.Eventually(t, 5*time.Second, "the address has too many requests in flight", func() bool {
		if report(slow).Status == 429 {
			return true
		}
		occupy() // the report may have taken the place of one
		return false
	})
	if a := report("192.0.2.2"); a.Status != 401 {
		t.Errorf("another address: got %d %s", a.Status, a.Body)
	}
}
