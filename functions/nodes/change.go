package nodes

import (
	"context"
	"errors"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// changeAttempts bounds the retries of a change while others change the node.
const changeAttempts = 3

// Change changes what admins set of a node.
func (s service) Change(
	ctx context.Context, who domain.Identity, token domain.Secret, name string, in *ChangeNode,
	expected func(version int64) bool,
) (node, error) {
	if text := valueOf(in.StatusURL); text != "" {
		if err := s.statusURLs.Check(text); err != nil {
			return node{}, apperr.InvalidField("status_url", strings.TrimPrefix(err.Error(), "url: "))
		}
	}
	cloud := s.cloud.As(token, who.ProjectID)
	for range changeAttempts {
		found, err := s.get(ctx, cloud, name)
		if err == nil {
			err = cloud.MayChangeServices(ctx)
		}
		if err != nil {
			return found, err
		}
		if !expected(found.stored.Version) {
			return found, apperr.New(apperr.Precondition, "the node has been changed: its ETag is \"%d\" now",
				found.stored.Version)
		}
		settings, err := in.apply(found.stored)
		if err != nil {
			return found, err
		}
		found.stored, err = s.nodes.Describe(ctx, name, settings, found.stored.Version)
		if !errors.Is(err, domain.ErrChanged) {
			return found, err
		}
	}
	return node{}, apperr.New(apperr.Conflict, "others change the node at the same time: try once more")
}

// Delete removes a node that is down and empty: its nova-compute from Nova, with the caller's token, then what is
// stored.
func (s service) Delete(ctx context.Context, who domain.Identity, token domain.Secret, name string) error {
	cloud := s.cloud.As(token, who.ProjectID)
	found, err := s.get(ctx, cloud, name)
	if err == nil {
		err = cloud.MayChangeServices(ctx)
	}
	if err == nil {
		err = checkDelete(found)
	}
	if err == nil && found.isThere {
		err = cloud.DeleteService(ctx, found.ServiceID)
	}
	if err != nil || found.stored.Version == 0 {
		return err
	}
	if err = s.nodes.Delete(ctx, name); apperr.CodeOf(err) == apperr.NotFound { // somebody else has
		return nil
	}
	return err
}

// checkDelete says why a node cannot be deleted.
func checkDelete(n node) error {
	isReservable := n.stored.Pool != ""
	isDead := n.status() == domain.NodeDown || !n.isThere && n.status() == domain.NodeUnknown
	switch {
	case isReservable:
		return apperr.New(apperr.Conflict, "node %s is reservable: make it unreservable first", n.Name)
	case n.isDraining():
		return apperr.New(apperr.Conflict, "node %s is drained: cancel that first", n.Name)
	case n.CellDown:
		return apperr.New(apperr.Conflict, "the cell of node %s does not answer: whether it is down is unknown", n.Name)
	case n.IsUp || !isDead:
		return apperr.New(apperr.Conflict, "node %s is %s: only a node that is down can be deleted", n.Name, n.status())
	case n.Servers == 1:
		return apperr.New(apperr.Conflict, "node %s has 1 server: move or delete it first", n.Name)
	case n.Servers > 1:
		return apperr.New(apperr.Conflict, "node %s has %d servers: move or delete them first", n.Name, n.Servers)
	}
	return nil
}
