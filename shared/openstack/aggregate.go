package openstack

import (
	"context"
	"slices"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/aggregates"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Host aggregates, by default the cloud's admins only. Each call is done when what it asks for is so already.
//
// Nova's scheduler isolates hosts by Placement's copy of an aggregate, where its uuid is listed at the provider of each
// host. nova-api writes that copy after its own, and when it cannot it only logs a warning, and answers 200. So
// AddHost looks at the copy, and completes it. An aggregate must have its metadata before it has hosts: until then
// everybody's servers may land on them.

// Aggregates lists the host aggregates.
func (s *Session) Aggregates(ctx context.Context) ([]domain.Aggregate, error) {
	var body struct {
		Aggregates []aggregates.Aggregate `json:"aggregates"`
	}
	err := s.getNova(ctx, computeAggregateIDs, &body, "os-aggregates")
	return convert(body.Aggregates, err, func(a aggregates.Aggregate) domain.Aggregate { return aggregate(&a) })
}

func aggregate(a *aggregates.Aggregate) domain.Aggregate {
	return domain.Aggregate{ID: a.ID, UUID: a.UUID, Name: a.Name, Hosts: a.Hosts, Metadata: a.Metadata}
}

// Aggregate reads one aggregate.
func (s *Session) Aggregate(ctx context.Context, id int) (domain.Aggregate, error) {
	return s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.Get(ctx, nova, id).Extract()
	})
}

func (s *Session) onAggregate(
	ctx context.Context, call func(*gophercloud.ServiceClient) (*aggregates.Aggregate, error),
) (domain.Aggregate, error) {
	nova, err := s.compute(ctx, computeAggregateIDs)
	if err != nil {
		return domain.Aggregate{}, err
	}
	found, err := call(nova)
	if err != nil {
		return domain.Aggregate{}, classify("nova", err)
	}
	return aggregate(found), nil
}

// EnsureAggregate finds or makes the aggregate of that name, and gives it the metadata. Other metadata of it stays.
func (s *Session) EnsureAggregate(
	ctx context.Context, name string, metadata map[string]string,
) (domain.Aggregate, error) {
	found, ok, err := s.FindAggregate(ctx, name)
	if err == nil && !ok {
		found, err = s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
			return aggregates.Create(ctx, nova, aggregates.CreateOpts{Name: name}).Extract()
		})
		if apperr.CodeOf(err) == apperr.Conflict { // somebody was faster
			found, err = s.foundAgain(ctx, name, err)
		}
	}
	if err != nil {
		return domain.Aggregate{}, err
	}
	missing := aggregates.SetMetadataOpts{Metadata: map[string]any{}}
	for key, value := range metadata {
		if found.Metadata[key] != value {
			missing.Metadata[key] = value
		}
	}
	if len(missing.Metadata) == 0 {
		return found, nil
	}
	return s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.SetMetadata(ctx, nova, found.ID, missing).Extract()
	})
}

// noAggregate is no aggregate's id: Nova counts from 1.
const noAggregate = 0

// MayChangeAggregates fails for a caller whom Nova's policy forbids to change aggregates. It renames an aggregate that
// does not exist: Nova checks its policy first.
func (s *Session) MayChangeAggregates(ctx context.Context) error {
	_, err := s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.Update(ctx, nova, noAggregate, aggregates.UpdateOpts{Name: "cloudfn"}).Extract()
	})
	return absentIsDone(err)
}

// FindAggregate finds the aggregate of a name. ok is false when no aggregate has it.
func (s *Session) FindAggregate(ctx context.Context, name string) (found domain.Aggregate, ok bool, err error) {
	all, err := s.Aggregates(ctx)
	for _, a := range all {
		if a.Name == name {
			return a, true, err
		}
	}
	return domain.Aggregate{}, false, err
}

// foundAgain is the aggregate that Nova says to be there already.
func (s *Session) foundAgain(ctx context.Context, name string, refused error) (domain.Aggregate, error) {
	found, ok, err := s.FindAggregate(ctx, name)
	if err == nil && !ok {
		err = refused
	}
	return found, err
}

// AddHost puts a host into an aggregate, in Nova and in Placement, where providerID is the host's.
func (s *Session) AddHost(ctx context.Context, a domain.Aggregate, host, providerID string) error {
	_, err := s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.AddHost(ctx, nova, a.ID, aggregates.AddHostOpts{Host: host}).Extract()
	})
	if apperr.CodeOf(err) == apperr.Conflict {
		if now, again := s.Aggregate(ctx, a.ID); again == nil && slices.Contains(now.Hosts, host) {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	return s.setProviderAggregate(ctx, providerID, a.UUID, true)
}

// RemoveHost takes a host out of an aggregate, in Nova and in Placement. Placement is first, as Nova itself does it:
// what fails in between is still in Nova's list, and is found by whoever tries again.
func (s *Session) RemoveHost(ctx context.Context, a domain.Aggregate, host, providerID string) error {
	if err := absentIsDone(s.setProviderAggregate(ctx, providerID, a.UUID, false)); err != nil {
		return err
	}
	_, err := s.onAggregate(ctx, func(nova *gophercloud.ServiceClient) (*aggregates.Aggregate, error) {
		return aggregates.RemoveHost(ctx, nova, a.ID, aggregates.RemoveHostOpts{Host: host}).Extract()
	})
	if apperr.CodeOf(err) != apperr.NotFound {
		return err
	}
	now, again := s.Aggregate(ctx, a.ID)
	if again == nil && slices.Contains(now.Hosts, host) { // Nova knows the host no more, and keeps it in the list
		return err
	}
	return absentIsDone(again)
}

// DeleteAggregate deletes an aggregate without hosts. Nova refuses one that has any.
func (s *Session) DeleteAggregate(ctx context.Context, id int) error {
	nova, err := s.compute(ctx, computeBase)
	if err != nil {
		return err
	}
	return absentIsDone(classify("nova", aggregates.Delete(ctx, nova, id).ExtractErr()))
}
