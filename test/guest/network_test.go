package guest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// guests is the network of the guests: a network namespace of the sandbox (scripts/sandbox.d/guests.sh).
type guests struct{ namespace string }

func newGuests(t *testing.T, sandbox string) guests {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(sandbox, "run", "libvirt.pid"))
	if err != nil {
		t.Fatal(err)
	}
	return guests{"/proc/" + strings.Fields(string(text))[0] + "/ns/net"}
}

// inside runs f on a thread that is in the namespace. A socket stays in the namespace in which it was made.
func (g guests) inside(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: it is never unlocked
		file, err := os.Open(g.namespace)
		if err == nil {
			defer file.Close()
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// listen listens on an address of the gateway.
func (g guests) listen(t *testing.T, address string) (l net.Listener) {
	t.Helper()
	err := g.inside(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// dial connects to an address with digits: looking up a name would leave the thread.
func (g guests) dial(_ context.Context, network, address string) (conn net.Conn, err error) {
	inside := g.inside(func() error {
		to, err := net.ResolveTCPAddr(network, address)
		if err == nil {
			conn, err = dialTCP(to)
		}
		return err
	})
	return conn, inside
}

// dialTCP connects without Go's own dialer, which may do that on another thread.
func dialTCP(to *net.TCPAddr) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "guest")
	defer file.Close()
	timeout := unix.Timeval{Sec: 5}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout); err != nil {
		return nil, err
	}
	address := &unix.SockaddrInet4{Port: to.Port}
	copy(address.Addr[:], to.IP.To4())
	if err := unix.Connect(fd, address); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return net.FileConn(file)
}

// client is an HTTP client in the network of the guests.
func (g guests) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: g.dial, DisableKeepAlives: true}}
}

// forward lets the guests reach a server on loopback.
func forward(l net.Listener, to string) {
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to)
			if err != nil {
				return
			}
			defer conn.Close()
			go func() { _, _ = io.Copy(conn, from) }()
			_, _ = io.Copy(from, conn)
		}()
	}
}
