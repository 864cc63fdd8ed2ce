package testkit

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

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
