package openstack

import (
	"context"
	"math"
	"net/url"
	"strconv"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// What is here tells beforehand what Nova finds out while it makes a server. By default both are for the cloud's
// admins only: Placement refuses other tokens (403), and Neutron leaves networks out of its answer.

// FreeAddresses is how many addresses each of the networks has left, by IP version. A network that is not in it is one that
// the token may not ask about.
func (s *Session) FreeAddresses(ctx context.Context, networkIDs []string) (map[string]map[int]float64, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return nil, err
	}
	var body struct {
		Networks []struct {
			ID      string `json:"network_id"`
			Subnets []struct {
				Version int     `json:"ip_version"`
				Used    float64 `json:"used_ips"`
				Total   float64 `json:"total_ips"` // of an IPv6 subnet more than an int64 holds
			} `json:"subnet_ip_availability"`
		} `json:"network_ip_availabilities"`
	}
	query := url.Values{"network_id": networkIDs}
	if _, err := neutron.Get(ctx, neutron.ServiceURL("network-ip-availabilities")+"?"+query.Encode(), &body, nil); err != nil {
		return nil, classify("neutron", err)
	}
	free := map[string]map[int]float64{}
	for _, n := range body.Networks {
		by := map[int]float64{}
		for _, subnet := range n.Subnets {
			by[subnet.Version] += max(0, subnet.Total-subnet.Used)
		}
		free[n.ID] = by
	}
	return free, nil
}

// placementSummaries is the lowest microversion whose candidates come with what each host has and what is used of it.
const placementSummaries = "1.10"

// Room is how many servers of the flavor the hosts have room for, at most: a flavor's traits and a zone may leave fewer.
// A flavor that asks Placement for other resources than its sizes is Unsupported.
func (s *Session) Room(ctx context.Context, f domain.Flavor) (int, error) {
	plain, err := s.plainFlavor(ctx, f.ID)
	if err != nil {
		return 0, err
	}
	if !plain {
		return 0, apperr.New(apperr.Unsupported, "the flavor asks for other resources than its sizes")
	}
	placement, err := s.client(ctx, "placement", "", placementSummaries)
	if err != nil {
		return 0, err
	}
	need := map[string]int{"VCPU": f.VCPUs, "MEMORY_MB": f.RAMMB}
	if f.DiskGB > 0 {
		need["DISK_GB"] = f.DiskGB
	}
	resources := make([]string, 0, len(need))
	for class, n := range need {
		resources = append(resources, class+":"+strconv.Itoa(n))
	}
	var body struct {
		Hosts map[string]struct {
			Resources map[string]struct{ Capacity, Used int } `json:"resources"`
		} `json:"provider_summaries"`
	}
	query := url.Values{"resources": {strings.Join(resources, ",")}}
	if _, err := placement.Get(ctx, placement.ServiceURL("allocation_candidates")+"?"+query.Encode(), &body, nil); err != nil {
		return 0, classify("placement", err)
	}
	room := 0
	for _, host := range body.Hosts {
		fits := math.MaxInt
		for class, n := range need {
			if r, known := host.Resources[class]; known { // else it is shared, as storage may be
				fits = min(fits, max(0, r.Capacity-r.Used)/n)
			}
		}
		if _, isHost := host.Resources["VCPU"]; isHost {
			room += fits
		}
	}
	return room, nil
}

// plainFlavor says whether the flavor's extra specs leave its sizes as they are.
func (s *Session) plainFlavor(ctx context.Context, id string) (bool, error) {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return false, err
	}
	var body struct {
		Specs map[string]string `json:"extra_specs"`
	}
	if _, err := nova.Get(ctx, nova.ServiceURL("flavors", url.PathEscape(id), "os-extra_specs"), &body, nil); err != nil {
		return false, classify("nova", err)
	}
	for key := range body.Specs {
		if strings.HasPrefix(key, "resources") || strings.HasPrefix(key, "hw:cpu_") { // dedicated CPUs are no VCPU
			return false, nil
		}
	}
	return true, nil
}
