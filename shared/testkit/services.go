package testkit

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	shared "github.com/cloudfn/cloudfn/shared/openstack"
)

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
