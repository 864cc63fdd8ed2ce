package openstack

import (
	"encoding/json"
	"testing"
)

// TestNoHost: the fault of a server without a host says what one must have, as far as Nova shows it. Any other fault is
// Nova's own text.
func TestNoHost(t *testing.T) {
	t.Parallel()
	const found = `"fault": {"code": 500, "message": "No valid host was found. There are not enough hosts available."}`
	const end = ", in the zone, the server group and the networks of the request. Only an admin sees which hosts do"
	for name, tc := range map[string]struct{ server, want string }{
		"by size": {
			`{"flavor": {"vcpus": 64, "ram": 2048, "disk": 20}, "image": {"id": "i"}, ` + found + `}`,
			"No valid host was found. There are not enough hosts available. One host must have 64 vCPUs, 2048 MB of " +
				"memory, 20 GB of disk" + end,
		},
		"by extra specs, from a volume": {
			`{"flavor": {"vcpus": 1, "ram": 64, "disk": 1, "extra_specs": {
				"trait:CUSTOM_A": "required", "trait1:CUSTOM_B": "forbidden", "pci_passthrough:alias": "gpu:1",
				"resources:VGPU": "1", "resources1:CUSTOM_X": "2", "aggregate_instance_extra_specs:ssd": "true",
				"hw:cpu_policy": "dedicated", "quota:cpu_shares": "9", "hw_rng:allowed": "true"}}, "image": "", ` + found + `}`,
			"No valid host was found. There are not enough hosts available. One host must have 1 vCPUs, 64 MB of " +
				"memory, the aggregate property ssd=true, the CPU policy dedicated, the PCI devices gpu:1, " +
				"the resource CUSTOM_X=2, the resource VGPU=1, not the trait CUSTOM_B, the trait CUSTOM_A" + end,
		},
		"of another kind": {
			`{"flavor": {"vcpus": 1}, "fault": {"message": "Build of instance aborted: No valid host was found"}}`,
			"Build of instance aborted: No valid host was found",
		},
		"without a flavor": {
			`{` + found + `}`, "No valid host was found. There are not enough hosts available.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s server
			if err := json.Unmarshal([]byte(tc.server), &s); err != nil {
				t.Fatal(err)
			}
			if got := s.domain().Fault.Message; got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}
