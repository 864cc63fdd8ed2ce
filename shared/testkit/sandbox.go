package testkit

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	shared "github.com/cloudfn/cloudfn/shared/openstack"
)

// CloudsYAML returns the path of the sandbox's clouds.yaml. Everything that needs the sandbox calls it: without a
// sandbox the test fails, and with TEST_CLOUD=none (make check) it is skipped, for a reason that scripts/gotest
// accepts.
func CloudsYAML(t testing.TB) string {
	t.Helper()
	if os.Getenv("TEST_CLOUD") == "none" {
		t.Skip("left out: it needs the sandbox cloud, and TEST_CLOUD=none")
	}
	dir := os.Getenv("CLOUDFN_SANDBOX")
	if dir == "" {
		dir = "/var/tmp/cloudfn-sandbox"
	}
	file := filepath.Join(dir, "clouds.yaml")
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("no sandbox cloud: run scripts/sandbox up (%v)", err)
	}
	return file
}

// Login logs in to one of the clouds in clouds.yaml. The admin logs in once per test process.
func Login(t testing.TB, cloud string) *gophercloud.ProviderClient {
	t.Helper()
	if cloud != "admin" {
		return login(t, authOptions(t, cloud))
	}
	admin.Lock()
	defer admin.Unlock()
	if admin.client == nil {
		admin.client = login(t, authOptions(t, cloud))
	}
	return admin.client
}

var admin struct {
	sync.Mutex
	client *gophercloud.ProviderClient
}

// authOptions reads how to log in to one of the clouds in clouds.yaml.
func authOptions(t testing.TB, cloud string) gophercloud.AuthOptions {
	t.Helper()
	auth, _, _, err := clouds.Parse(clouds.WithCloudName(cloud), clouds.WithLocations(CloudsYAML(t)))
	check(t, err)
	return auth
}

func login(t testing.TB, auth gophercloud.AuthOptions) *gophercloud.ProviderClient {
	t.Helper()
	client, err := openstack.AuthenticatedClient(context.Background(), auth)
	if err != nil {
		t.Fatalf("the sandbox cloud does not answer: run scripts/sandbox up (%v)", err)
	}
	remember("a token", client.Token())
	return client
}

// Token returns a new token of one of the clouds in clouds.yaml.
func Token(t testing.TB, cloud string) string { t.Helper(); return Login(t, cloud).Token() }

// Compute returns a client of Nova.
func Compute(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	nova := must(openstack.NewComputeV2(client, gophercloud.EndpointOpts{}))(t)
	return nova
}

// OpenStack runs python-openstackclient with one of the clouds in clouds.yaml. A run takes 1.5 s of processor time, so
// do not poll with it.
func OpenStack(t testing.TB, cloud string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "openstack", args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "OS_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "OS_CLIENT_CONFIG_FILE="+CloudsYAML(t), "OS_CLOUD="+cloud)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("openstack %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out))
}

// SandboxSetting returns what the sandbox was made with: the value of SANDBOX_name, "" where it has none.
func SandboxSetting(t testing.TB, name string) string {
	t.Helper()
	text := must(os.ReadFile(filepath.Join(filepath.Dir(CloudsYAML(t)), "settings")))(t)
	_, rest, _ := strings.Cut("\n"+string(text), "\nSANDBOX_"+name+"=")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// InSandbox returns a command that runs where the packages of the sandbox's release are.
func InSandbox(args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(Root(), "scripts", "sandbox"), append([]string{"run"}, args...)...)
}

func lastLine(out []byte) string {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return string(lines[len(lines)-1])
}

// Identity returns a client of Keystone.
func Identity(t testing.TB, client *gophercloud.ProviderClient) *gophercloud.ServiceClient {
	t.Helper()
	keystone := must(openstack.NewIdentityV3(client, gophercloud.EndpointOpts{}))(t)
	return keystone
}

// UserData returns a server's decoded user_data, which Nova shows to admins only.
func UserData(t testing.TB, serverID string) string {
	t.Helper()
	nova := Compute(t, Login(t, "admin"))
	nova.Microversion = "2.3"
	var body struct {
		Server struct {
			UserData string `json:"OS-EXT-SRV-ATTR:user_data"`
		} `json:"server"`
	}
	check(t, servers.Get(context.Background(), nova, serverID).Result.ExtractInto(&body))
	data := must(base64.StdEncoding.DecodeString(body.Server.UserData))(t)
	return string(data)
}

// Ports counts the ports of a server, even of a deleted one.
func Ports(t testing.TB, serverID string) int {
	t.Helper()
	return countPorts(t, ports.ListOpts{DeviceID: serverID})
}

// Ports counts the ports in the project.
func (p *Project) Ports(t testing.TB) int {
	t.Helper()
	return countPorts(t, ports.ListOpts{ProjectID: p.ID})
}

func countPorts(t testing.TB, which ports.ListOpts) int {
	t.Helper()
	neutron := must(openstack.NewNetworkV2(Login(t, "admin"), gophercloud.EndpointOpts{}))(t)
	found := all(t, ports.List(neutron, which), ports.ExtractPorts)
	return len(found)
}

// KeystoneURL returns the URL of the sandbox's Keystone.
func KeystoneURL(t testing.TB) string {
	t.Helper()
	return strings.TrimSuffix(Login(t, "demo").IdentityEndpoint, "/")
}

// Endpoint returns the URL of a service of the sandbox, by its type in the catalog.
func Endpoint(t testing.TB, service string) string {
	t.Helper()
	opts := gophercloud.EndpointOpts{Type: service, Availability: gophercloud.AvailabilityPublic}
	return strings.TrimSuffix(must(Login(t, "demo").EndpointLocator(opts))(t), "/")
}

// Session logs in a service account of clouds.yaml as the functions do.
func Session(t testing.TB, account string) *shared.Session {
	t.Helper()
	cfg := shared.Config{Cloud: account, ConfigFile: CloudsYAML(t)}
	cloud := must(shared.New(cfg, shared.Options{}))(t)
	t.Cleanup(cloud.Close)
	login := must(cloud.Account(cfg, shared.Credentials{}))(t)
	return must(login.Login(t.Context()))(t)
}

// AgentParameters reads the deployment, its token and the image from a server's user_data. All are empty when no agent
// is deployed.
func AgentParameters(t testing.TB, server string) (deployment, token, image string) {
	t.Helper()
	var config struct {
		Files []struct {
			Path    string
			Content []byte
		} `json:"write_files"`
	}
	text, ok := strings.CutPrefix(UserData(t, server), "#cloud-config\n")
	if !ok {
		return "", "", ""
	}
	check(t, json.Unmarshal([]byte(text), &config))
	for _, f := range config.Files {
		if strings.HasSuffix(f.Path, "/parameters") {
			lines := strings.Split(string(f.Content), "\n")
			return lines[1], lines[2], lines[5]
		}
	}
	t.Fatalf("the user_data lacks parameters: %s", text)
	return "", "", ""
}

// Service calls a service of OpenStack directly, in the name of a project's member.
type Service struct{ client *gophercloud.ServiceClient }

// Service is nova, cinder, glance, octavia or barbican.
func (p *Project) Service(t testing.TB, name string) Service {
	t.Helper()
	p.changed = true
	client := p.Login(t)
	switch name {
	case "nova":
		return Service{Compute(t, client)}
	case "cinder":
		return Service{BlockStorage(t, client)}
	case "glance":
		return Service{must(openstack.NewImageV2(client, gophercloud.EndpointOpts{}))(t)}
	case "octavia":
		return Service{LoadBalancers(t, client)}
	case "barbican":
		return Service{KeyManager(t, client)}
	}
	t.Fatalf("no service %q", name)
	return Service{}
}

// Get reads the JSON at a path, and returns the status of the answer.
func (s Service) Get(t testing.TB, path string, into any) (status int) {
	t.Helper()
	return s.call(t, http.MethodGet, path, &gophercloud.RequestOpts{JSONResponse: into})
}

// Has reports whether a path is not 404.
func (s Service) Has(t testing.TB, path string) bool {
	t.Helper()
	return s.call(t, http.MethodGet, path, &gophercloud.RequestOpts{}) != http.StatusNotFound
}

// Do sends a request whose answer does not matter, with a body or nil and headers in pairs.
func (s Service) Do(t testing.TB, method, path string, body any, header ...string) (status int) {
	t.Helper()
	opts := &gophercloud.RequestOpts{JSONBody: body, MoreHeaders: map[string]string{}}
	for i := 0; i+1 < len(header); i += 2 {
		opts.MoreHeaders[header[i]] = header[i+1]
	}
	return s.call(t, method, path, opts)
}

// Text reads what is at a path as it is, such as the content of an image.
func (s Service) Text(t testing.TB, path, accept string) string {
	t.Helper()
	resp := must(s.client.Request(context.Background(), http.MethodGet, s.client.ServiceURL(path),
		&gophercloud.RequestOpts{MoreHeaders: map[string]string{"Accept": accept}, KeepResponseBody: true}))(t)
	defer func() { _ = resp.Body.Close() }()
	return string(must(io.ReadAll(resp.Body))(t))
}

func (s Service) call(t testing.TB, method, path string, opts *gophercloud.RequestOpts) (status int) {
	t.Helper()
	opts.OkCodes = []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent}
	resp, err := s.client.Request(context.Background(), method, s.client.ServiceURL(path), opts)
	if refused, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return refused.Actual
	}
	check(t, err)
	return resp.StatusCode
}

// Heavy waits until no other heavy test runs, in any process. A test that builds more than a few servers calls it
// first, so that everything is removed before the next one begins: two cores build one test's servers in seconds, but
// those of four tests in minutes. Subtests of a heavy test must not be parallel: the tests that wait occupy all slots.
func Heavy(t testing.TB) {
	t.Helper()
	name := filepath.Join(filepath.Dir(CloudsYAML(t)), "heavy-test.lock")
	file := must(os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600))(t)
	t.Cleanup(func() { file.Close() }) // this releases the lock
	start := time.Now()
	check(t, syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	t.Logf("waited %.1f s for its turn", time.Since(start).Seconds())
}
