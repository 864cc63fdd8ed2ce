package openstack

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// service is one nova-compute of Nova's service list.
type service struct {
	ID     string    `json:"id"`
	Host   string    `json:"host"`
	Zone   string    `json:"zone"`
	Status string    `json:"status"`
	State  string    `json:"state"`
	Reason string    `json:"disabled_reason"`
	Forced bool      `json:"forced_down"`
	Seen   naiveTime `json:"updated_at"`
}

func (s service) domain() domain.ComputeHost {
	return domain.ComputeHost{
		Name: s.Host, Zone: s.Zone, IsUp: s.State == "up", IsEnabled: s.Status == "enabled",
		ServiceID: s.ID, CellDown: s.Status == "UNKNOWN", DisabledReason: clean(s.Reason), SeenAt: s.Seen.Time,
		ForcedDown: s.Forced, IsBrief: true, Attributes: map[string]string{},
	}
}

// ComputeHosts lists the cloud's hosts of compute, sorted by name, as Nova shows them: by default to its admins only.
// What servers may use of them is Placement's to say: HostInventories. A host whose nova-compute has never shown a
// hypervisor, or drives several, has no ProviderID.
func (s *Session) ComputeHosts(ctx context.Context) ([]domain.ComputeHost, error) {
	hosts, err := s.ComputeServices(ctx)
	if err != nil {
		return nil, err
	}
	driven, err := s.hypervisors(ctx, hosts)
	if err != nil {
		return nil, err
	}
	for i := range hosts {
		describe(&hosts[i], driven[hosts[i].Name])
	}
	return hosts, nil
}

// ComputeServices lists the hosts by their nova-compute, without their hypervisors, sorted by name: one call, as Nova
// has no pages of them.
func (s *Session) ComputeServices(ctx context.Context) ([]domain.ComputeHost, error) {
	return s.computeServices(ctx, url.Values{})
}

// computeServices lists the hosts by their nova-compute, sorted by name. It asks at a microversion that shows the
// hosts of a cell that is down, too.
func (s *Session) computeServices(ctx context.Context, query url.Values) ([]domain.ComputeHost, error) {
	nova, err := s.compute(ctx, computeDownCells)
	if err != nil {
		return nil, err
	}
	query.Set("binary", "nova-compute")
	var body struct {
		Services []service `json:"services"`
	}
	if err := getPage(ctx, nova, nova.ServiceURL("os-services")+"?"+query.Encode(), &body); err != nil {
		return nil, classify("nova", err)
	}
	// Of two services of one name the one that reported last is alive.
	slices.SortFunc(body.Services, func(a, b service) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), b.Seen.Compare(a.Seen.Time))
	})
	body.Services = slices.CompactFunc(body.Services, func(a, b service) bool { return a.Host == b.Host })
	hosts := make([]domain.ComputeHost, len(body.Services))
	for i, found := range body.Services {
		hosts[i] = found.domain()
	}
	return hosts, nil
}

// ComputeService finds one host by its name, in one call and without its hypervisor. It is NotFound when Nova has none
// of that name.
func (s *Session) ComputeService(ctx context.Context, name string) (domain.ComputeHost, error) {
	hosts, err := s.computeServices(ctx, url.Values{"host": {name}})
	if err != nil {
		return domain.ComputeHost{}, err
	}
	return hostNamed(hosts, name)
}

// ComputeHost finds one host by its name. It is NotFound when Nova has none of that name.
func (s *Session) ComputeHost(ctx context.Context, name string) (domain.ComputeHost, error) {
	hosts, err := s.ComputeHosts(ctx)
	if err != nil {
		return domain.ComputeHost{}, err
	}
	return hostNamed(hosts, name)
}

func hostNamed(hosts []domain.ComputeHost, name string) (domain.ComputeHost, error) {
	for _, h := range hosts {
		if h.Name == name {
			return h, nil
		}
	}
	return domain.ComputeHost{}, apperr.New(apperr.NotFound, "there is no compute host %q", name)
}

// HostServers lists the servers on a host with their sizes, those of all projects: by default to the cloud's
// admins only.
func (s *Session) HostServers(ctx context.Context, host string) ([]domain.Server, error) {
	query := url.Values{"limit": {strconv.Itoa(watchPage)}, "all_tenants": {"1"}, "host": {host}}
	out := []domain.Server{}
	err := s.eachServer(ctx, computeFlavorInside, query, func(found *server) {
		one := found.domain()
		if isThere := one.Status != "DELETED"; isThere {
			out = append(out, one)
		}
	})
	return out, err
}
