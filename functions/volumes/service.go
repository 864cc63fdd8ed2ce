package volumes

import (
	"context"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/openstack"
)

type service struct{ cloud *openstack.Cloud }

const (
	// filterPage is the size of a page when a filter may leave few volumes of it.
	filterPage = 200
	// maxRead limits the volumes that one request reads to apply its filters. A page may then be shorter than its limit
	// although there are more.
	maxRead = 1000

	// requestKey marks a volume with the request that made it, for an attempt after one without an answer.
	requestKey = "cloudfn_request"
)

// as makes the calls of a request, with its caller's token.
func (s service) as(who domain.Identity, token domain.Secret) *openstack.Session {
	return s.cloud.As(token, who.ProjectID)
}

// List reads one page of volumes, the newest first. marker is the last one of the page, "" at the end of the list.
func (s service) List(
	ctx context.Context, who domain.Identity, token domain.Secret, q domain.VolumeQuery,
) (found []domain.Volume, marker string, err error) {
	cloud, pages := s.as(who, token), q
	if q.Name != "" || q.Status != "" {
		pages.Limit = max(q.Limit, filterPage)
	}
	for read := 0; ; {
		page, hasMore, err := cloud.VolumePage(ctx, pages)
		if apperr.CodeOf(err) == apperr.NotFound && pages.Marker != "" {
			return nil, "", apperr.InvalidField("marker", "is no volume of the project, or it was deleted meanwhile")
		}
		if err != nil {
			return nil, "", err
		}
		for n, v := range page {
			if q.Selects(v) {
				found = append(found, v)
			}
			if len(found) == q.Limit && (hasMore || n < len(page)-1) {
				return found, v.ID, nil
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

// Create begins to make a volume. A request with an Idempotency-Key marks it, and finds it by the mark when an earlier
// attempt had no answer.
func (s service) Create(
	ctx context.Context, who domain.Identity, token domain.Secret, r domain.VolumeRequest,
) (domain.Volume, error) {
	cloud := s.as(who, token)
	id, isKeyed, isResumed := domain.AttemptFrom(ctx)
	if isKeyed {
		r.Metadata = map[string]string{requestKey: id.String()}
	}
	if isResumed {
		made, err := cloud.Volumes(ctx, requestKey, id.String())
		if err != nil {
			return domain.Volume{}, err
		}
		for _, v := range made {
			if v.Metadata[requestKey] == id.String() {
				return v, nil
			}
		}
	}
	return cloud.MakeVolume(ctx, r)
}

// Delete begins to delete a volume. There is nothing to do for one that is being deleted.
func (s service) Delete(ctx context.Context, who domain.Identity, token domain.Secret, id string) error {
	cloud := s.as(who, token)
	v, err := cloud.OwnVolume(ctx, id, who.ProjectID)
	if err != nil || v.Status == "deleting" {
		return err
	}
	return cloud.DeleteVolume(ctx, id)
}
