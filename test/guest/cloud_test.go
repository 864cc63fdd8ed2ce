package guest_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

const (
	// gateway is the guests' bridge on a network of the test's own. That has IPv4 alone, because nothing announces a
	// router for IPv6, and guests wait for one when they start.
	gateway      = "10.0.0.1"
	subnet       = "10.0.0.0/24"
	registryHost = gateway + ":5000"
	flavor       = "guest"

	// bootTime is how long a guest may take until it has booted: QEMU computes what it runs.
	bootTime = 10 * time.Minute
)

// cloud is a sandbox of this test's own, with a host for guests, and cloudfn as one process.
type cloud struct {
	api      *testkit.Client
	project  *testkit.Project
	guests   guests
	registry *registry
	image    string
	network  string
}

// newCloud starts the sandbox: beside the one of the other tests, on other ports.
func newCloud(t *testing.T) *cloud {
	t.Helper()
	folder := cmp.Or(os.Getenv("CLOUDFN_SANDBOX"), "/var/tmp/cloudfn-sandbox") + "-guest"
	settings := map[string]string{
		"CLOUDFN_SANDBOX": folder, "SANDBOX_RELEASE": "zed", "SANDBOX_GUESTS": "on",
		"SANDBOX_COMPUTES": "compute-1", "SANDBOX_RESERVABLE": "compute-3",
		"SANDBOX_VOLUMES": "off", "SANDBOX_LOADBALANCERS": "off", "SANDBOX_KEYS": "off",
		"SANDBOX_KEYSTONE_PORT": "6000", "SANDBOX_GLANCE_PORT": "6292", "SANDBOX_PLACEMENT_PORT": "6778",
		"SANDBOX_NOVA_PORT": "6774", "SANDBOX_NEUTRON_PORT": "6696", "SANDBOX_CINDER_PORT": "6776",
		"SANDBOX_OCTAVIA_PORT": "6876", "SANDBOX_BARBICAN_PORT": "6311", "SANDBOX_RABBIT_PORT": "6672",
		"SANDBOX_EPMD_PORT": "14370", "SANDBOX_RABBIT_DIST_PORT": "26672",
	}
	files := script(t, settings, "guest", "image")
	t.Cleanup(func() { script(t, settings, "sandbox", "down") })
	script(t, settings, "sandbox", "up")
	for _, name := range []string{"CLOUDFN_SANDBOX", "SANDBOX_RELEASE"} {
		if err := os.Setenv(name, settings[name]); err != nil { //nolint:usetesting // for the cleanups of testkit, too
			t.Fatal(err)
		}
	}
	c := &cloud{guests: newGuests(t, folder), registry: newRegistry(t)}
	c.project = testkit.NewProject(t)
	c.network = "guests"
	c.project.StaticNetwork(t, c.network, subnet)
	c.image = uploadImage(t, files)
	go func() { _ = http.Serve(c.guests.listen(t, registryHost), c.registry) }()
	daemon := testkit.Spawn(t, testkit.Env(t, testkit.Database(t), map[string]string{
		"AGENT_URL": "http://" + gateway + ":8080", "STATS_BACKFILL": "1h",
	}))
	go forward(c.guests.listen(t, gateway+":8080"), strings.TrimPrefix(daemon.URL, "http://"))
	c.api = daemon.As(c.project.Token(t))
	return c
}

func script(t *testing.T, env map[string]string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // also for a cleanup
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(testkit.Root(), "scripts", args[0]), args[1:]...)
	cmd.Env = os.Environ()
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var errors bytes.Buffer
	cmd.Stderr = &errors
	start := time.Now()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("scripts/%s: %v: %s%s", strings.Join(args, " "), err, out, errors.String())
	}
	t.Logf("scripts/%s took %s", strings.Join(args, " "), time.Since(start).Round(time.Second))
	return strings.TrimSpace(string(out))
}

// uploadImage gives Glance the files of scripts/guest.
func uploadImage(t *testing.T, folder string) string {
	t.Helper()
	upload := func(file, format string, properties map[string]string) string {
		name := file + " " + filepath.Base(folder)
		return testkit.PublicImage(t, name, format, filepath.Join(folder, file), properties)
	}
	return upload("disk.qcow2", "qcow2", map[string]string{
		"kernel_id": upload("vmlinuz", "raw", nil), "ramdisk_id": upload("initrd", "raw", nil),
		"os_command_line": "root=/dev/vda console=ttyS0 mitigations=off systemd.show_status=no",
	})
}

// server is what the test reads of a server.
type server struct {
	ID, Name, Status string
	Addresses        []struct{ IP string }
	Instance         struct {
		ID, State string
		Agent     *struct {
			ReadyAt *time.Time `json:"ready_at"`
		}
	}
}

func (c *cloud) show(t *testing.T, id string) (s server) {
	t.Helper()
	c.api.Get(t, "/v1/servers/"+id).JSON(t, &s)
	return s
}

// console returns the end of the console log.
func (c *cloud) console(t *testing.T, id string) string {
	t.Helper()
	var log struct{ Output string }
	c.api.Get(t, "/v1/servers/"+id+"/console?lines=1000").JSON(t, &log)
	return log.Output
}

// awaitConsole waits until the guest has printed a text at least so many times.
func (c *cloud) awaitConsole(t *testing.T, id, text string, times int) {
	t.Helper()
	c.await(t, id, fmt.Sprintf("the guest prints %q (%d)", text, times), func() bool {
		return strings.Count(c.console(t, id), text) >= times
	})
}

// await shows on failure what the guest has printed.
func (c *cloud) await(t *testing.T, id, what string, ok func() bool) {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > bootTime {
			log := c.console(t, id)
			log = log[max(0, len(log)-8000):]
			t.Fatalf("not within %s: %s. %+v. The guest says: %s", bootTime, what, c.show(t, id), log)
		}
		time.Sleep(2 * time.Second) // each request takes the processor from the guest
	}
	t.Logf("%s: after %s", what, time.Since(start).Round(time.Second))
}

// act does an action and waits for the server's state.
func (c *cloud) act(t *testing.T, id, body, state string) {
	t.Helper()
	a := c.api.Post(t, "/v1/servers/"+id+"/actions", body)
	if a.Status != http.StatusAccepted {
		t.Fatalf("%s: %d %s", body, a.Status, a.Body)
	}
	c.await(t, id, body+" makes it "+state, func() bool { return c.show(t, id).Instance.State == state })
}

// get reads a path of what runs in a guest; "" when nothing answers.
func (c *cloud) get(address, path string) string {
	resp, err := c.guests.client().Get("http://" + address + path)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// shell runs a command in the guest by SSH.
func (c *cloud) shell(t *testing.T, s server, key, command string) string {
	t.Helper()
	signer, err := ssh.ParsePrivateKey([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ClientConfig{
		User: "debian", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, Timeout: time.Minute,
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), // which the guest has made just now
	}
	address := c.address(t, s) + ":22"
	conn, err := c.guests.dial(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	secure, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		t.Fatalf("SSH: %v", err)
	}
	client := ssh.NewClient(secure, channels, requests)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	out, err := session.CombinedOutput(command)
	if err != nil {
		t.Errorf("%s: %v", command, err)
	}
	return string(out)
}

func (c *cloud) address(t *testing.T, s server) string {
	t.Helper()
	for _, a := range s.Addresses {
		if strings.Contains(a.IP, ".") {
			return a.IP
		}
	}
	t.Fatalf("it has no address: %+v", s)
	return ""
}

func text(v any) string { out, _ := json.Marshal(v); return string(out) }
