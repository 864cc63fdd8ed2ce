package openstack

import (
	"context"
	"net/url"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Port reads a port of the project.
func (s *Session) Port(ctx context.Context, id string) (domain.Port, error) {
	neutron, err := s.neutron(ctx)
	if err != nil {
		return domain.Port{}, err
	}
	var body struct {
		Port domain.Port `json:"port"`
	}
	err = get(ctx, neutron, neutron.ServiceURL("ports", url.PathEscape(id))+"?fields=id&fields=device_id", &body)
	return body.Port, err
}
