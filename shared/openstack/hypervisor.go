package openstack

import (
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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
	return page, classify("nova", getPage(ctx, nova, address, &page))
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
