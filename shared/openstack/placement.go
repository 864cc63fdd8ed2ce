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

// The microversions of Placement that calls ask for: the lowest that has what is needed.
const (
	placementTraits     = "1.6"  // traits, and the generation with which they are changed
	placementSummaries  = "1.10" // candidates come with what each host has and what is used of it
	placementRequired   = "1.18" // providers can be listed by a trait
	placementAggregates = "1.19" // aggregates of a provider with its generation: no change undoes another
	// placementInventories is where candidates come with all that a host has, and not only what was asked for.
	placementInventories = "1.27"
)

// Room is how many servers of the flavor the hosts have room for, at most: a flavor's traits and a zone may leave
// fewer. By default it is Forbidden for all but the cloud's admins. It is Unsupported for a flavor that asks Placement
// for other resources than its sizes.
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
	if err := get(ctx, placement, placement.ServiceURL("allocation_candidates")+"?"+query.Encode(), &body); err != nil {
		return 0, err
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

// plainFlavor reports whether the flavor's extra specs leave its sizes as they are.
func (s *Session) plainFlavor(ctx context.Context, id string) (bool, error) {
	var body struct {
		Specs map[string]string `json:"extra_specs"`
	}
	if err := s.getNova(ctx, computeBase, &body, "flavors", id, "os-extra_specs"); err != nil {
		return false, err
	}
	for key := range body.Specs {
		if strings.HasPrefix(key, "resources") || strings.HasPrefix(key, "hw:cpu_") { // dedicated CPUs are no VCPU
			return false, nil
		}
	}
	return true, nil
}
