package floatingips

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

type service struct{ cloud *openstack.Cloud }

const (
	// filterPage is the size of a page when a filter may leave few floating IPs of it.
	filterPage = 200
	// maxRead limits the floating IPs that one request reads to apply its filters. A page may then be shorter than its
	// limit although there are more.
	maxRead = 1000

	// requestMark stands at the end of a description, before the id of the request that made the floating IP, for an
	// attempt after one without an answer. Neutron takes no tag in the call that makes one.
	requestMark = "cloudfn_request:"
)

// as makes the calls of a request, with its caller's token.
func (s service) as(who domain.Identity, token domain.Secret) *openstack.Session {
	return s.cloud.As(token, who.ProjectID)
}

// List reads one page of floating IPs. marker is the last one of the page, "" at the end of the list.
func (s service) List(
	ctx context.Context, who domain.Identity, token domain.Secret, q domain.FloatingIPQuery,
) (found []domain.FloatingIP, marker string, err error) {
	cloud, pages := s.as(who, token), q
	if q.IsAttached != nil {
		pages.Limit = max(q.Limit, filterPage)
	}
	for read := 0; ; {
		page, hasMore, err := cloud.FloatingIPPage(ctx, pages)
		if apperr.CodeOf(err) == apperr.NotFound && pages.Marker != "" {
			return nil, "", apperr.InvalidField("marker",
				"is no floating IP of the project, or it was deleted meanwhile")
		}
		if err != nil {
			return nil, "", err
		}
		for n, f := range page {
			if q.Selects(f) && f.ID > q.Marker { // Neutron begins again after a marker that was deleted
				found = append(found, f)
			}
			if len(found) == q.Limit && (hasMore || n < len(page)-1) {
				return found, f.ID, nil
			}
		}
		if !hasMore {
			return found, "", nil
		}
		pages.Marker = page[len(page)-1].ID
		if read += len(page); read >= maxRead {
			return found, pages.Marker, nil
		}
	}
}

// Create makes a floating IP of an external network, by its id or name; "" = the only one. A request with an
// Idempotency-Key marks it, and finds it by the mark when an earlier attempt had no answer.
func (s service) Create(
	ctx context.Context, who domain.Identity, token domain.Secret, r domain.FloatingIPRequest,
) (domain.FloatingIP, error) {
	cloud := s.as(who, token)
	id, isKeyed, isResumed := domain.AttemptFrom(ctx)
	if isKeyed {
		r.Description = withMark(r.Description, id)
	}
	if isResumed {
		made, err := cloud.FloatingIPs(ctx, domain.FloatingIPQuery{Description: r.Description})
		if err != nil {
			return domain.FloatingIP{}, err
		}
		for _, f := range made {
			if f.Description == r.Description {
				return f, nil
			}
		}
	}
	external, err := cloud.ExternalNetworks(ctx)
	if err != nil {
		return domain.FloatingIP{}, err
	}
	network, err := lookup.PickExternalNetwork(external, lookup.Ref{Field: "network", Value: r.NetworkID})
	if err != nil {
		return domain.FloatingIP{}, err
	}
	r.NetworkID = network.ID
	return cloud.CreateFloatingIP(ctx, r)
}

func withMark(description string, id uuid.UUID) string {
	return strings.TrimSpace(description + " " + requestMark + id.String())
}

// withoutMark is a description as its user gave it.
func withoutMark(description string) string {
	text, id, _ := cutLast(description, requestMark)
	if uuid.Validate(id) != nil {
		return description
	}
	return strings.TrimSuffix(text, " ")
}

func cutLast(text, mark string) (before, after string, found bool) {
	n := strings.LastIndex(text, mark)
	if n < 0 {
		return text, "", false
	}
	return text[:n], text[n+len(mark):], true
}

// Delete releases a floating IP. One that is attached is not, unless force says so.
func (s service) Delete(
	ctx context.Context, who domain.Identity, token domain.Secret, id string, force bool,
) error {
	cloud := s.as(who, token)
	f, err := cloud.FloatingIP(ctx, id)
	switch {
	case err != nil:
		return err
	case f.PortID != "" && f.ServerID != "" && !force:
		return apperr.New(apperr.Conflict,
			"the floating IP %s is attached to the server %s: detach it first, or delete it with force=true",
			f.Address, f.ServerID)
	case f.PortID != "" && !force:
		return apperr.New(apperr.Conflict,
			"the floating IP %s is attached to the port %s: detach it first, or delete it with force=true",
			f.Address, f.PortID)
	}
	return cloud.DeleteFloatingIP(ctx, id)
}
