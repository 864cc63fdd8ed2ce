package openstack

import (
	"context"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

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
// aggregates. It is a Conflict while servers are on the host. One that is gone is deleted already.
func (s *Session) DeleteService(ctx context.Context, id string) error {
	nova, err := s.compute(ctx, computeServiceIDs)
	if err != nil {
		return err
	}
	_, err = nova.Delete(ctx, nova.ServiceURL("os-services", id), nil)
	return absentIsDone(classify("nova", err))
}
