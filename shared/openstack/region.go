package openstack

import "context"

// Regions lists the regions of the catalog by name, and returns that of this process; "" = unknown.
func (s *Session) Regions(ctx context.Context) (all []string, own string, err error) {
	found, err := s.services(ctx)
	if err != nil {
		return nil, "", err
	}
	all, own = found.allRegions(), s.cloud.region
	if own == "" && len(all) == 1 {
		own = all[0]
	}
	return all, own, nil
}
