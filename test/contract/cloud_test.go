package contract_test

import (
	"io"
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/google/uuid"
)

// cloudAnswers are what a small cloud answers: it has a server of any id, a host, two flavors, an image of any name, a
// network, a key pair and a project. $last is the last part of the path, $name the name of the query, $new a new id.
var cloudAnswers = []struct {
	call   string // a pattern of the method and the path, without Nova's /v2.1
	status int
	body   string
}{
	{`GET /compute`, 200, `{"versions": [
{"id": "v2.1", "status": "CURRENT", "version": "2.93", "min_version": "2.1"}]}`},
	{`GET /compute/servers/detail`, 200, `{"servers": []}`},
	{`GET /compute/servers/[^/]+`, 200, `{"server": {"id": "$last", "name": "x", "status": "ACTIVE",
"OS-EXT-STS:vm_state": "active", "OS-EXT-STS:power_state": 1, "OS-EXT-STS:task_state": null,
"tenant_id": "` + ownProject + `", "user_id": "` + matrixUser + `", "image": {"id": "` + exampleServer + `"},
"flavor": {"original_name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1}, "addresses": {}, "tags": [],
"metadata": {}, "created": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:00Z"}}`},
	{`POST /compute/servers`, 202, `{"server": {"id": "$new"}}`},
	{`POST /compute/servers/[^/]+/action`, 202, `{"image_id": "$new"}`},
	{`PUT /compute/servers/[^/]+`, 200, `{"server": {"id": "$last", "name": "x"}}`},
	{`DELETE /compute/servers/[^/]+`, 204, ``},
	{`POST /compute/servers/[^/]+/metadata`, 200, `{"metadata": {}}`},
	{`DELETE /compute/servers/[^/]+/metadata/[^/]+`, 204, ``},
	{`PUT /compute/servers/[^/]+/tags/[^/]+`, 201, ``},
	{`DELETE /compute/servers/[^/]+/tags/[^/]+`, 204, ``},
	{`GET /compute/flavors/detail`, 200, `{"flavors": [
{"id": "1", "name": "m1.tiny", "vcpus": 1, "ram": 512, "disk": 1, "os-flavor-access:is_public": true},
{"id": "2", "name": "m1.small", "vcpus": 1, "ram": 4096, "disk": 20, "os-flavor-access:is_public": true}]}`},
	{`GET /compute/flavors/[^/]+/os-extra_specs`, 200, `{"extra_specs": {}}`},
	{`POST /compute/servers/[^/]+/remote-consoles`, 200, `{"remote_console": {"type": "novnc", "protocol": "vnc",
"url": "https://console.example.com"}}`},
	{`GET /compute/os-aggregates`, 200, `{"aggregates": []}`},
	{`PUT /compute/os-aggregates/0`, 404, `{}`},
	{`GET /compute/os-keypairs`, 200, `{"keypairs": [{"keypair": {"name": "laptop", "type": "ssh"}}]}`},
	{`POST /compute/os-keypairs`, 201, `{"keypair": {"name": "$new"}}`},
	{`GET /compute/os-availability-zone`, 200, `{"availabilityZoneInfo": [
{"zoneName": "nova", "zoneState": {"available": true}}]}`},
	{`GET /compute/limits`, 200, `{"limits": {"absolute": {"maxTotalInstances": -1, "maxTotalCores": -1,
"maxTotalRAMSize": -1}}}`},
	{`GET /compute/os-services`, 200, `{"services": [{"id": "` + exampleServer + `", "binary": "nova-compute",
"host": "` + exampleNode + `", "zone": "nova", "status": "enabled", "state": "up", "forced_down": false,
"updated_at": "2026-01-01T00:00:00.000000", "disabled_reason": null}]}`},
	{`GET /compute/os-hypervisors/detail`, 200, `{"hypervisors": [{"id": "` + exampleServer + `", "vcpus": 4,
"hypervisor_hostname": "` + exampleNode + `", "service": {"host": "` + exampleNode + `"}}]}`},
	{`PUT /compute/os-services/0.*`, 404, `{"itemNotFound": {"code": 404, "message": "no such service"}}`},
	{`PUT /compute/os-services/.*`, 200, `{"service": {}}`},
	{`GET /placement/.*`, 404, `{}`},
	{`GET /image/v2/images`, 200, `{"images": [{"id": "` + exampleServer + `", "name": "$name", "status": "active",
"visibility": "public", "size": 1, "min_disk": 0, "min_ram": 0, "disk_format": "qcow2"}]}`},
	{`GET /image/v2/images/.*`, 200, `{"id": "$last", "name": "debian", "status": "active", "visibility": "public",
"size": 1, "min_disk": 0, "min_ram": 0, "disk_format": "qcow2"}`},
	{`GET /network/v2.0/networks`, 200, `{"networks": [{"id": "` + exampleNetwork + `", "name": "private",
"project_id": "` + ownProject + `", "status": "ACTIVE", "subnets": ["` + exampleServer + `"]}]}`},
	{`GET /network/v2.0/subnets`, 200, `{"subnets": [{"id": "` + exampleServer + `", "name": "private",
"network_id": "` + exampleNetwork + `", "cidr": "10.0.0.0/24", "ip_version": 4}]}`},
	{`GET /network/v2.0/security-groups`, 200, `{"security_groups": [{"id": "` + exampleServer + `",
"name": "default"}]}`},
	{`POST /network/v2.0/security-groups`, 201, `{"security_group": {"id": "$new", "name": "web",
"project_id": "` + ownProject + `", "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"}}`},
	{`GET /network/v2.0/security-groups/[^/]+`, 200, `{"security_group": {"id": "$last", "name": "web",
"project_id": "` + ownProject + `", "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"}}`},
	{`DELETE /network/v2.0/security-groups/[^/]+`, 204, ``},
	{`POST /network/v2.0/security-group-rules`, 201, `{"security_group_rule": {"id": "$new", "direction": "ingress",
"ethertype": "IPv4"}}`},
	{`GET /network/v2.0/ports`, 200, `{"ports": [{"id": "` + exampleServer + `", "device_owner": "compute:nova",
"network_id": "` + exampleNetwork + `", "security_groups": [], "status": "ACTIVE", "mac_address": "",
"fixed_ips": []}]}`},
	{`GET /network/v2.0/ports/[^/]+`, 200, `{"port": {"id": "$last", "device_id": ""}}`},
	{`PUT /network/v2.0/ports/[^/]+`, 200, `{"port": {}}`},
	{`POST /compute/servers/[^/]+/os-interface`, 200, `{"interfaceAttachment": {"port_id": "$new"}}`},
	{`GET /compute/servers/[^/]+/os-volume_attachments`, 200, `{"volumeAttachments": []}`},
	{`POST /compute/servers/[^/]+/os-volume_attachments`, 200, `{"volumeAttachment": {}}`},
	{`DELETE /compute/servers/[^/]+/os-volume_attachments/[^/]+`, 202, ``},
	{`GET /network/v2.0/floatingips`, 200, `{"floatingips": []}`},
	{`POST /network/v2.0/floatingips`, 201, `{"floatingip": {"id": "$new", "floating_ip_address": "203.0.113.7"}}`},
	{`GET /network/v2.0/floatingips/[^/]+`, 200, `{"floatingip": {"id": "$last", "floating_ip_address": "203.0.113.7",
"project_id": "` + ownProject + `"}}`},
	{`PUT /network/v2.0/floatingips/[^/]+`, 200, `{"floatingip": {"id": "$last"}}`},
	{`DELETE /network/v2.0/floatingips/[^/]+`, 204, ``},
	{`GET /network/v2.0/(ports|routers)`, 200, `{"ports": [], "routers": []}`},
	{`GET /volumev3/volumes/detail`, 200, `{"volumes": []}`},
	{`POST /volumev3/volumes`, 202, `{"volume": {"id": "$new", "status": "creating", "size": 1}}`},
	{`GET /volumev3/volumes/[^/]+`, 200, `{"volume": {"id": "$last", "status": "available", "size": 1}}`},
	{`DELETE /volumev3/volumes/[^/]+`, 202, ``},
	{`POST /v3/OS-TRUST/trusts`, 201, `{"trust": {"id": "$new", "roles": [{"id": "member", "name": "member"}]}}`},
	{`DELETE /v3/OS-TRUST/trusts/.*`, 204, ``},
	{`GET /v3/auth/projects`, 200, `{"projects": [
{"id": "` + thirdProject + `", "name": "web", "domain_id": "default"}]}`},
}

const exampleNetwork = "b4796845-f1bc-47f3-8824-72e723fb3491"

// smallCloud answers the calls of OpenStack that the examples need.
func smallCloud() func(http.ResponseWriter, *http.Request) bool {
	patterns := make([]*regexp.Regexp, len(cloudAnswers))
	for n, a := range cloudAnswers {
		patterns[n] = regexp.MustCompile("^" + a.call + "$")
	}
	return func(w http.ResponseWriter, r *http.Request) bool {
		call := strings.TrimSuffix(r.Method+" "+strings.Replace(r.URL.Path, "/v2.1", "", 1), "/")
		for n, a := range cloudAnswers {
			if patterns[n].MatchString(call) {
				w.Header().Set("X-OpenStack-Nova-API-Version", "2.93")
				w.WriteHeader(a.status)
				_, _ = io.WriteString(w, strings.NewReplacer("$last", path.Base(call), "$new", uuid.NewString(),
					"$name", strings.TrimPrefix(r.URL.Query().Get("name"), "eq:")).Replace(a.body))
				return true
			}
		}
		w.WriteHeader(http.StatusNotFound)
		return true
	}
}
