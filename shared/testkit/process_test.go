package testkit

import (
	"net"
	"os"
	"strconv"
	"testing"
)

// TestFreePortIsReserved for the test that has it, although nothing listens on it yet.
func TestFreePortIsReserved(t *testing.T) {
	t.Parallel()
	var port int
	t.Run("until the test ends", func(t *testing.T) {
		port = must(strconv.Atoi(FreePort(t)))(t)
		if reservePort(t, port) != nil {
			t.Errorf("port %d was reserved twice", port)
		}
	})
	again := reservePort(t, port)
	if again == nil {
		t.Fatalf("port %d is still reserved after its test", port)
	}
	_ = again.Close()
}

// TestListeningPort finds the sockets of IPv4 and of all addresses. Connected ones do not count.
func TestListeningPort(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"127.0.0.1:0", ":0"} {
		l := must(net.Listen("tcp", address))(t)
		_, port, _ := net.SplitHostPort(l.Addr().String())
		file := must(l.(*net.TCPListener).File())(t)
		_ = l.Close()
		child := must(os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{
			Files: []*os.File{nil, nil, nil, file},
		}))(t)
		t.Cleanup(func() { _, _ = child.Wait() })
		t.Cleanup(func() { _ = child.Kill() })
		_ = file.Close()
		if got := ListeningPort(child.Pid); got != port {
			t.Errorf("listening on %s: got port %q, want %q", address, got, port)
		}
	}
}
