package openstack

import (
	"context"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/resourceproviders"
	"github.com/gophercloud/gophercloud/v2/openstack/placement/v1/traits"
	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// The microversions of Placement that calls request: the lowest that has what is needed.
const (
	placementTraits     = "1.6"  // traits, and the generation with which they are changed
	placementSummaries  = "1.10" // candidates come with what each host has and what is used of it
	placementRequired   = "1.18" // providers can be listed by a trait
	placementAggregates = "1.19" // aggregates of a provider with its generation: no change undoes another
	// placementInventories is where candidates come with all that a host has, and not only what was requested.
	placementInventories = "1.27"
)

// Room is how many servers of the flavor the hosts have room for, at most: a flavor's traits and a zone may leave
// fewer. By default it is Forbidden for all but the cloud's admins. It is Unsupported for a flavor that requests
// other resources from Placement than its sizes.
func (s *Session) Room(ctx context.Context, f domain.Flavor) (int, error) {
	plain, err := s.plainFlavor(ctx, f.ID)
	if err != nil {
		return 0, err
	}
	if !plain {
		return 0, apperr.New(apperr.Unsupported, "the flavor requires other resources than its sizes")
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

// Resource providers of Placement. A client that changes a provider says which generation of it was read, and gets 409
// when it is another one meanwhile: nova-compute and every allocation change it, so a change is read and tried again.
// Placement also fails one of two concurrent changes with 500, when its database finds a deadlock; that is tried again,
// too.

// generationTries is how often a change of a provider is tried.
const generationTries = 20

// changeProvider reads a provider and writes it until no other write was faster. change reads and writes.
func (s *Session) changeProvider(
	ctx context.Context, microversion string, change func(*gophercloud.ServiceClient) error,
) error {
	placement, err := s.client(ctx, "placement", "", microversion)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := classify("placement", change(placement))
		// the only conflict of these changes
		isStale := apperr.CodeOf(err) == apperr.Conflict
		if !isStale && !apperr.Retryable(err) || try == generationTries {
			return err
		}
		pause := firstPause + time.Duration(rand.Int64N(int64(firstPause))) //nolint:gosec // it only spreads the tries
		if !flow.Sleep(ctx, pause) {
			return classify("placement", ctx.Err())
		}
	}
}

// EnsureTrait makes a trait that providers can have. Its name begins with CUSTOM_.
func (s *Session) EnsureTrait(ctx context.Context, name string) error {
	placement, err := s.client(ctx, "placement", "", placementTraits)
	if err != nil {
		return err
	}
	return classify("placement", traits.Create(ctx, placement, name).ExtractErr())
}

// DeleteTrait deletes a trait. It is a Conflict while a provider has it.
func (s *Session) DeleteTrait(ctx context.Context, name string) error {
	placement, err := s.client(ctx, "placement", "", placementTraits)
	if err != nil {
		return err
	}
	return absentIsDone(classify("placement", traits.Delete(ctx, placement, name).ExtractErr()))
}

// IsolatedProviders lists the ids of the providers that have the trait and are in the aggregate with this uuid.
func (s *Session) IsolatedProviders(ctx context.Context, aggregate, trait string) ([]string, error) {
	placement, err := s.client(ctx, "placement", "", placementRequired)
	if err != nil {
		return nil, err
	}
	var body struct {
		Providers []struct {
			ID string `json:"uuid"`
		} `json:"resource_providers"`
	}
	query := url.Values{"member_of": {aggregate}, "required": {trait}}
	err = get(ctx, placement, placement.ServiceURL("resource_providers")+"?"+query.Encode(), &body)
	if apperr.CodeOf(err) == apperr.Invalid { // no such trait
		return nil, nil
	}
	ids := make([]string, len(body.Providers))
	for n, p := range body.Providers {
		ids[n] = p.ID
	}
	return ids, err
}

// SetProviderTrait gives a provider a trait, or takes it. Its other traits stay. To give one to a provider that does
// not exist is NotFound; to take one from it is done.
func (s *Session) SetProviderTrait(ctx context.Context, providerID, trait string, present bool) error {
	err := s.changeProvider(ctx, placementTraits, func(placement *gophercloud.ServiceClient) error {
		now, err := resourceproviders.GetTraits(ctx, placement, providerID).Extract()
		if err != nil || slices.Contains(now.Traits, trait) == present {
			return err
		}
		return resourceproviders.UpdateTraits(ctx, placement, providerID, resourceproviders.UpdateTraitsOpts{
			ResourceProviderGeneration: now.ResourceProviderGeneration, Traits: with(now.Traits, trait, present),
		}).Err
	})
	if !present {
		return absentIsDone(err)
	}
	return err
}

// setProviderAggregate puts a provider into an aggregate of Placement, or takes it out.
func (s *Session) setProviderAggregate(ctx context.Context, providerID, uuid string, present bool) error {
	return s.changeProvider(ctx, placementAggregates, func(placement *gophercloud.ServiceClient) error {
		now, err := resourceproviders.GetAggregates(ctx, placement, providerID).Extract()
		if err != nil || slices.Contains(now.Aggregates, uuid) == present {
			return err
		}
		return resourceproviders.UpdateAggregates(ctx, placement, providerID, resourceproviders.UpdateAggregatesOpts{
			ResourceProviderGeneration: now.ResourceProviderGeneration, Aggregates: with(now.Aggregates, uuid, present),
		}).Err
	})
}

// with is the list with the item, or without it. It is never nil: Placement wants a list.
func with(list []string, item string, present bool) []string {
	out := slices.DeleteFunc(append([]string{}, list...), func(other string) bool { return other == item })
	if present {
		out = append(out, item)
	}
	return out
}

// isolatingTraits begin the traits that isolate hosts. They are secrets, so they are not read with the others.
const isolatingTraits = "CUSTOM_CLOUDFN_"

// inventoryCalls is how many hosts Placement is queried for at a time.
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
		return map[string]inventory{}, nil // each is queried alone
	}
	return body.Hosts, err
}

// hostInventory reads one host from Placement. nova-compute makes the provider after the hypervisor, so it may be
// absent.
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
	host.Traits = slices.DeleteFunc(slices.Sorted(slices.Values(i.Traits)), func(trait string) bool {
		return strings.HasPrefix(trait, isolatingTraits)
	})
}
