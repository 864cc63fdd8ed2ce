package openstack

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/gophercloud/gophercloud/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// service is one nova-compute of Nova's service list.
type service struct {
	ID        string    `json:"id"`
	Host      string    `json:"host"`
	Zone      string    `json:"zone"`
	Status    string    `json:"status"`
	State     string    `json:"state"`
	Reason    string    `json:"disabled_reason"`
	Forced    bool      `json:"forced_down"`
	UpdatedAt naiveTime `json:"updated_at"`
}

func (s service) domain() domain.ComputeHost {
	return domain.ComputeHost{
		Name: s.Host, Zone: s.Zone, IsUp: s.State == "up", IsEnabled: s.Status == "enabled",
		ServiceID: s.ID, CellDown: s.Status == "UNKNOWN", DisabledReason: clean(s.Reason), SeenAt: s.UpdatedAt.Time,
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

// computeServices lists the hosts by their nova-compute, sorted by name. It requests a microversion that shows the
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
		return cmp.Or(cmp.Compare(a.Host, b.Host), b.UpdatedAt.Compare(a.UpdatedAt.Time))
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

// hypervisorList is a page of hypervisors.
type hypervisorList struct {
	Hypervisors []hypervisor `json:"hypervisors"`
	Links       []link       `json:"hypervisors_links"`
}

// hypervisorPage reads a page of hypervisors with their servers, those after the marker.
func (s *Session) hypervisorPage(ctx context.Context, marker string) (page hypervisorList, err error) {
	nova, err := s.compute(ctx, computeHypervisors)
	if err != nil {
		return page, err
	}
	query := url.Values{"with_servers": {"true"}, "limit": {strconv.Itoa(watchPage)}}
	if marker != "" {
		query.Set("marker", marker)
	}
	address := nova.ServiceURL("os-hypervisors", "detail") + "?" + query.Encode()
	err = classify("nova", getPage(ctx, nova, address, &page))
	return page, err
}

// DescribeHosts fills in what one page of hypervisors shows of the hosts, in one call: their servers and sizes. It
// returns the marker of the next page, "" after the last one. A marker that Nova has no more begins again. Of a host
// whose hypervisors are on several pages the sizes are those of one.
func (s *Session) DescribeHosts(
	ctx context.Context, hosts []domain.ComputeHost, marker string,
) (next string, err error) {
	page, err := s.hypervisorPage(ctx, marker)
	if code := apperr.CodeOf(err); marker != "" && (code == apperr.Invalid || code == apperr.NotFound) {
		return "", nil
	}
	if err != nil {
		return marker, err
	}
	driven := map[string][]hypervisor{}
	for _, h := range page.Hypervisors {
		driven[h.Service.Host] = append(driven[h.Service.Host], h)
		next = h.ID
	}
	for i := range hosts {
		if on := driven[hosts[i].Name]; len(on) > 0 {
			describe(&hosts[i], on)
		}
	}
	return next, nil
}

// hypervisors reads all hypervisors with their servers, by the host of their nova-compute. Usually that is one call, as
// Nova links a next page. It leaves out hypervisors whose nova-compute was deleted, and then it may not link one. So
// another page is read until every host that is up was found, or a page brings nothing new.
func (s *Session) hypervisors(ctx context.Context, hosts []domain.ComputeHost) (map[string][]hypervisor, error) {
	found, seen, marker := map[string][]hypervisor{}, map[string]bool{}, ""
	isMissing := func(h domain.ComputeHost) bool { return h.IsUp && found[h.Name] == nil }
	for {
		page, err := s.hypervisorPage(ctx, marker)
		if err != nil {
			return nil, err
		}
		isNew := false
		for _, h := range page.Hypervisors {
			if !seen[h.ID] {
				seen[h.ID], isNew, marker = true, true, h.ID
				found[h.Service.Host] = append(found[h.Service.Host], h)
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
	host.Servers, host.ServerIDs, host.IsBrief = len(servers), slices.Sorted(maps.Keys(servers)), false
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

// HostReports lists the enabled hosts of compute with their zones and last reports, in one call that has less than half
// of what the list of services has of each. It has neither their ids nor hosts that are disabled or in a cell that is
// down: ComputeServices has.
func (s *Session) HostReports(ctx context.Context) ([]domain.ComputeHost, error) {
	type report struct {
		IsUp      bool      `json:"available"`
		Active    bool      `json:"active"`
		UpdatedAt naiveTime `json:"updated_at"`
	}
	var body struct {
		Zones []struct {
			Name  string                       `json:"zoneName"`
			Hosts map[string]map[string]report `json:"hosts"`
		} `json:"availabilityZoneInfo"`
	}
	if err := s.getNova(ctx, computeBase, &body, "os-availability-zone", "detail"); err != nil {
		return nil, err
	}
	var hosts []domain.ComputeHost
	for _, zone := range body.Zones {
		for name, services := range zone.Hosts {
			if found, ok := services["nova-compute"]; ok && found.Active {
				hosts = append(hosts, domain.ComputeHost{
					Name: name, Zone: zone.Name, IsUp: found.IsUp, IsEnabled: true, IsBrief: true,
					SeenAt: found.UpdatedAt.Time,
				})
			}
		}
	}
	return hosts, nil
}

// DisableService keeps new servers off a host, by the id of its nova-compute. Nova's service list shows the reason.
func (s *Session) DisableService(ctx context.Context, id, reason string) error {
	return s.setService(ctx, id, map[string]any{"status": "disabled", "disabled_reason": reason})
}

// EnableService lets new servers onto a host.
func (s *Session) EnableService(ctx context.Context, id string) error {
	return s.setService(ctx, id, map[string]any{"status": "enabled"})
}

func (s *Session) setService(ctx context.Context, id string, to map[string]any) error {
	nova, err := s.compute(ctx, computeServiceIDs)
	if err != nil {
		return err
	}
	_, err = nova.Put(ctx, nova.ServiceURL("os-services", id), to, nil,
		&gophercloud.RequestOpts{OkCodes: []int{http.StatusOK}})
	return classify("nova", err)
}

// MayChangeServices fails for a caller whom Nova's policy forbids to change compute services. It enables one that does
// not exist: Nova applies its policy before it looks for the service.
func (s *Session) MayChangeServices(ctx context.Context) error {
	err := s.EnableService(ctx, uuid.Nil.String())
	if apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}

// DeleteService removes a nova-compute from Nova by its id, with its resource providers, and its host from all
// aggregates. It is a Conflict while servers are on the host. An absent one counts as deleted.
func (s *Session) DeleteService(ctx context.Context, id string) error {
	nova, err := s.compute(ctx, computeServiceIDs)
	if err != nil {
		return err
	}
	_, err = nova.Delete(ctx, nova.ServiceURL("os-services", id), nil)
	return absentIsDone(classify("nova", err))
}
