package openstack

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// noHost begins Nova's fault of a server for which its scheduler has found no host.
const noHost = "No valid host was found"

// hostSpecs are the prefixes of a flavor's extra specs that rule out hosts, besides traits, with what each asks for:
// those of the scheduler's filters and of Placement (Nova's "Extra Specs" reference).
var hostSpecs = []struct{ prefix, means string }{
	{"resources", "the resource "},
	{"pci_passthrough:alias", "the PCI devices "},
	{"accel:device_profile", "the accelerators "},
	{"aggregate_instance_extra_specs:", "the aggregate property "},
	{"capabilities:", "the capability "},
	{"hw:cpu_policy", "the CPU policy "},
	{"hw:mem_page_size", "memory pages of the size "},
	{"hw:mem_encryption", "memory encryption "},
	{"hw:numa_nodes", "as NUMA nodes "},
}

// explained adds to Nova's fault of a server without a host what one host must have for it. Nova says neither that nor
// which host lacks what, and shows the hosts to admins only.
func (s *server) explained(fault string) string {
	if !strings.HasPrefix(fault, noHost) || s.Flavor == nil || s.Flavor.VCPUs == 0 {
		return fault
	}
	needs := []string{fmt.Sprintf("%d vCPUs", s.Flavor.VCPUs), fmt.Sprintf("%d MB of memory", s.Flavor.RAM)}
	if s.Image.ID != "" && s.Flavor.Disk > 0 { // else its disk is a volume
		needs = append(needs, fmt.Sprintf("%d GB of disk", s.Flavor.Disk))
	}
	var specs map[string]string
	_ = json.Unmarshal(s.Flavor.Specs, &specs) // absent where a policy hides them
	for _, key := range slices.Sorted(maps.Keys(specs)) {
		if need := hostNeed(key, specs[key]); need != "" {
			needs = append(needs, need)
		}
	}
	return fmt.Sprintf("%s. One host must have %s, in the zone, the server group and the networks of the request. "+
		"Only an admin sees which hosts do", strings.TrimRight(fault, ". "), strings.Join(needs, ", "))
}

// hostNeed says what an extra spec asks of a host; "" = nothing.
func hostNeed(key, value string) string {
	if kind, trait, ok := strings.Cut(key, ":"); ok && strings.HasPrefix(kind, "trait") { // or trait1, trait_GROUP
		if value == "forbidden" {
			return "not the trait " + trait
		}
		return "the trait " + trait
	}
	for _, spec := range hostSpecs {
		rest, ok := strings.CutPrefix(key, spec.prefix)
		if !ok {
			continue
		}
		if _, name, ok := strings.Cut(rest, ":"); ok { // resources1:CLASS
			rest = name
		}
		if rest == "" {
			return spec.means + value
		}
		return spec.means + rest + "=" + value
	}
	return ""
}
