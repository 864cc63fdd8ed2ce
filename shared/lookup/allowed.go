package lookup

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// PickAllowedImage is PickImage among those images that the connection allows. Any other name is Forbidden, whether
// such an image exists or not.
func PickAllowedImage(images []domain.Image, r Ref, limits domain.ConnectionLimits) (domain.Image, error) {
	image, err := PickImage(limits.AllowedImages(images), r)
	if len(limits.Images) > 0 && apperr.CodeOf(err) == apperr.Invalid {
		err = domain.NotAllowed(r.Field, "image", r.Value, limits.Images)
	}
	return image, err
}

// PickAllowedNetworks is PickNetworks among those networks that the connection allows.
func PickAllowedNetworks(networks []domain.Network, refs []Ref, limits domain.ConnectionLimits) ([]Ref, error) {
	chosen, err := PickNetworks(limits.AllowedNetworks(networks), refs)
	if e := apperr.As(err); err == nil || len(limits.Networks) == 0 || e.Code != apperr.Invalid || len(refs) == 0 {
		return chosen, err
	}
	at := slices.IndexFunc(refs, func(r Ref) bool { return r.Field == apperr.As(err).Fields[0].Field })
	return nil, domain.NotAllowed(refs[at].Field, "network", refs[at].Value, limits.Networks)
}

// FilterImages is FindImages among images that were read before.
func FilterImages(images []domain.Image, name string) []domain.Image {
	if uuid.Validate(name) == nil {
		if n := slices.IndexFunc(images, func(i domain.Image) bool { return i.ID == strings.ToLower(name) }); n >= 0 {
			return images[n : n+1]
		}
	}
	if named := activeNamed(slices.Clone(images), name); len(named) > 0 {
		return named
	}
	return activeNamed(slices.Clone(images), "")
}

// ResourceStore stores what can be ordered through connections.
type ResourceStore interface {
	Resources(ctx context.Context, projectID string, id uuid.UUID) (
		seen domain.SeenResources, age time.Duration, found bool, err error)
	RequestCheck(ctx context.Context, projectID string, id uuid.UUID) (since time.Time, err error)
}

const (
	resourceWait = 12 * time.Second
	resourcePoll = 250 * time.Millisecond
)

// Resources reads what can be ordered through a connection, as far as its limits allow it. If run-connections has not
// read it from the cloud yet, Resources wakes it and waits; found is false when that took too long.
func Resources(
	ctx context.Context, store ResourceStore, wake func(functions ...string), c domain.Connection,
) (seen domain.SeenResources, age time.Duration, found bool, err error) {
	began := time.Now()
	for isRequested := false; ; {
		seen, age, found, err = store.Resources(ctx, c.ProjectID, c.ID)
		if err != nil || found {
			return seen.Allowed(c.Limits), age, found, err
		}
		if !isRequested {
			if _, err := store.RequestCheck(ctx, c.ProjectID, c.ID); err != nil {
				return seen, 0, false, err
			}
			wake("run-connections")
			isRequested = true
		}
		if time.Since(began) > resourceWait || !flow.Sleep(ctx, resourcePoll) {
			return seen, 0, false, nil
		}
	}
}
