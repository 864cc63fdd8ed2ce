package openstack

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
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
	Seen   naiveTime `json:"updated_at"`
}

func (s service) domain() domain.ComputeHost {
	return domain.ComputeHost{
		Name: s.Host, Zone: s.Zone, IsUp: s.State == "up", IsEnabled: s.Status == "enabled",
		ServiceID: s.ID, CellDown: s.Status == "UNKNOWN", DisabledReason: clean(s.Reason), SeenAt: s.Seen.Time,
		Attributes: map[string]string{},
	}
}

// hypervisor is what a nova-compute drives: one, or with bare metal many.
type hypervisor struct {
	ID         string          `json:"id"`
	Hostname   string          `json:"hypervisor_hostname"`
	Type       string          `json:"hypervisor_type"`
	Version    int             `json:"hypervisor_version"`
	VCPUs      int             `json:"vcpus"`
	UsedVCPUs  int             `json:"vcpus_used"`
	RAMMB      int             `json:"memory_mb"`
	UsedRAMMB  int             `json:"memory_mb_used"`
	DiskGB     int             `json:"local_gb"`
	UsedDiskGB int             `json:"local_gb_used"`
	CPU        json.RawMessage `json:"cpu_info"`
	Service    struct {
		Host string `json:"host"`
	} `json:"service"`
	Servers []struct {
		ID string `json:"uuid"`
	} `json:"servers"`
}

// ComputeHosts lists the cloud's hosts of compute, sorted by name, as Nova shows them: by default to its admins only.
// What servers may use of them is Placement's to say: HostInventories. A host whose nova-compute has never shown a
// hypervisor, or drives several, has no ProviderID.
func (s *Session) ComputeHosts(ctx context.Context) ([]domain.ComputeHost, error) {
	hosts, err := s.computeServices(ctx, url.Values{})
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

// hypervisors reads all hypervisors with their servers, by the host of their nova-compute. Usually that is one call, as
// Nova links a next page. It leaves out hypervisors whose nova-compute was deleted, and then it may not link one. So
// another page is read until every host that is up was found, or a page brings nothing new.
func (s *Session) hypervisors(ctx context.Context, hosts []domain.ComputeHost) (map[string][]hypervisor, error) {
	nova, err := s.compute(ctx, computeHypervisors)
	if err != nil {
		return nil, err
	}
	found, seen := map[string][]hypervisor{}, map[string]bool{}
	isMissing := func(h domain.ComputeHost) bool { return h.IsUp && found[h.Name] == nil }
	query := url.Values{"with_servers": {"true"}, "limit": {strconv.Itoa(watchPage)}}
	for {
		var page struct {
			Hypervisors []hypervisor `json:"hypervisors"`
			Links       []link       `json:"hypervisors_links"`
		}
		address := nova.ServiceURL("os-hypervisors", "detail") + "?" + query.Encode()
		if err := getPage(ctx, nova, address, &page); err != nil {
			return nil, classify("nova", err)
		}
		isNew := false
		for _, h := range page.Hypervisors {
			if !seen[h.ID] {
				seen[h.ID], isNew = true, true
				found[h.Service.Host] = append(found[h.Service.Host], h)
				query.Set("marker", h.ID)
			}
		}
		if !isNew || nextMarker(page.Links) == "" && !slices.ContainsFunc(hosts, isMissing) {
			return found, nil
		}
	}
}

// describe says of a host what its hypervisors show.
func describe(host *domain.ComputeHost, driven []hypervisor) {
	servers := map[string]bool{} // Nova gives all servers of a host with each of its hypervisors
	for _, h := range driven {
		for _, server := range h.Servers {
			servers[server.ID] = true
		}
		host.VCPUs, host.UsedVCPUs = host.VCPUs+h.VCPUs, host.UsedVCPUs+h.UsedVCPUs
		host.RAMMB, host.UsedRAMMB = host.RAMMB+h.RAMMB, host.UsedRAMMB+h.UsedRAMMB
		host.DiskGB, host.UsedDiskGB = host.DiskGB+h.DiskGB, host.UsedDiskGB+h.UsedDiskGB
	}
	host.Servers, host.ServerIDs = len(servers), slices.Sorted(maps.Keys(servers))
	if len(driven) != 1 {
		return
	}
	h := driven[0]
	host.ProviderID = h.ID
	host.Attributes["hypervisor_hostname"], host.Attributes["hypervisor_type"] = h.Hostname, h.Type
	host.Attributes["hypervisor_version"] = strconv.Itoa(h.Version)
	var cpu any
	if json.Unmarshal(h.CPU, &cpu) == nil {
		attributes(host.Attributes, "cpu_info", cpu)
	}
}

// attributes writes a value and what is in it, each by its path: cpu_info:topology:cores. A list is one JSON text.
func attributes(into map[string]string, path string, value any) {
	switch v := value.(type) {
	case nil:
	case map[string]any:
		for key, inner := range v {
			attributes(into, path+":"+key, inner)
		}
	case string:
		into[path] = v
	default:
		text, _ := json.Marshal(v) //nolint:errchkjson // it was read as JSON
		into[path] = string(text)
	}
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
