package openstack

import (
	"context"
	"slices"

	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/resourceproviders"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// inventoryCalls is how many hosts Placement is asked for at a time.
const inventoryCalls = 8

// inventory is what a resource provider has.
type inventory struct {
	Resources map[string]amount `json:"resources"`
	Traits    []string          `json:"traits"`
}

// amount is what servers may use of a resource class, by its ratio and without what is reserved, and what they use.
type amount struct{ Capacity, Used int }

// HostInventories fills in what servers may use of each host, what they use, and its traits. A host without a provider
// keeps what Nova says, and has no traits. Several hosts take one call, and three more for each that has no room.
func (s *Session) HostInventories(ctx context.Context, hosts []domain.ComputeHost) error {
	provided := 0
	for _, h := range hosts {
		if h.ProviderID != "" {
			provided++
		}
	}
	var known map[string]inventory
	if provided > 1 {
		var err error
		if known, err = s.inventories(ctx); err != nil {
			return err
		}
	}
	calls, ctx := errgroup.WithContext(ctx)
	calls.SetLimit(inventoryCalls)
	for i := range hosts {
		if has, isKnown := known[hosts[i].ProviderID]; isKnown {
			has.fill(&hosts[i])
		} else if hosts[i].ProviderID != "" {
			calls.Go(func() error { return s.hostInventory(ctx, &hosts[i]) })
		}
	}
	return calls.Wait()
}

// HostInventory is HostInventories of one host.
func (s *Session) HostInventory(ctx context.Context, host domain.ComputeHost) (domain.ComputeHost, error) {
	hosts := []domain.ComputeHost{host}
	err := s.HostInventories(ctx, hosts)
	return hosts[0], err
}

// inventories reads the hosts that have room for the least that a server takes, by the id of the provider. Placement
// has no list of inventories, but its candidates come with them. A Placement older than that gives none.
func (s *Session) inventories(ctx context.Context) (map[string]inventory, error) {
	placement, err := s.client(ctx, "placement", "", placementInventories)
	if err != nil {
		return nil, err
	}
	var body struct {
		Hosts map[string]inventory `json:"provider_summaries"`
	}
	err = get(ctx, placement, placement.ServiceURL("allocation_candidates")+"?resources=MEMORY_MB:1", &body)
	if apperr.CodeOf(err) == apperr.Unsupported {
		return map[string]inventory{}, nil // each is asked for alone
	}
	return body.Hosts, err
}

// hostInventory asks Placement for one host. nova-compute makes the provider after the hypervisor, so it may be absent.
func (s *Session) hostInventory(ctx context.Context, host *domain.ComputeHost) error {
	placement, err := s.client(ctx, "placement", "", placementTraits)
	if err != nil {
		return err
	}
	has, err := resourceproviders.GetInventories(ctx, placement, host.ProviderID).Extract()
	if err != nil {
		return absentIsDone(classify("placement", err))
	}
	used, err := resourceproviders.GetUsages(ctx, placement, host.ProviderID).Extract()
	if err != nil {
		return absentIsDone(classify("placement", err))
	}
	found, err := resourceproviders.GetTraits(ctx, placement, host.ProviderID).Extract()
	if err != nil {
		return absentIsDone(classify("placement", err))
	}
	one := inventory{Resources: map[string]amount{}, Traits: found.Traits}
	for class, i := range has.Inventories {
		// with ratios such as 1.1 Placement rounds down, too
		capacity := int(float32(i.Total-i.Reserved) * i.AllocationRatio)
		one.Resources[class] = amount{capacity, used.Usages[class]}
	}
	one.fill(host)
	return nil
}

// fill says of a host what its provider has.
func (i inventory) fill(host *domain.ComputeHost) {
	host.VCPUs, host.UsedVCPUs = 0, 0
	for class, n := range i.Resources {
		switch class {
		case "VCPU", "PCPU": // a host may have shared and dedicated ones
			host.VCPUs += n.Capacity
			host.UsedVCPUs += n.Used
		case "MEMORY_MB":
			host.RAMMB, host.UsedRAMMB = n.Capacity, n.Used
		case "DISK_GB": // absent where disks are shared; then Nova's word stays
			host.DiskGB, host.UsedDiskGB = n.Capacity, n.Used
		}
	}
	host.Traits = slices.Sorted(slices.Values(i.Traits))
}
