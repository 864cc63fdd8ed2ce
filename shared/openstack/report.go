package openstack

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// HostReports lists the enabled hosts of compute with their zones and last reports, in one call that has less than half
// of what the list of services has of each. It has neither their ids nor hosts that are disabled or in a cell that is
// down: ComputeServices has.
func (s *Session) HostReports(ctx context.Context) ([]domain.ComputeHost, error) {
	type report struct {
		IsUp   bool      `json:"available"`
		Active bool      `json:"active"`
		Seen   naiveTime `json:"updated_at"`
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
					SeenAt: found.Seen.Time,
				})
			}
		}
	}
	return hosts, nil
}
