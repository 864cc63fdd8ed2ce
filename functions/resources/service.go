package resources

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

type service struct {
	cloud       *openstack.Cloud
	connections postgres.Connections
	wake        func(functions ...string)
	timeout     time.Duration // of one kind
}

// kinds are the kinds of resources, and how to list them.
var kinds = map[string]func(context.Context, *openstack.Session, *Resources) error{
	"flavors": func(ctx context.Context, s *openstack.Session, r *Resources) (err error) {
		r.Flavors, err = s.Flavors(ctx)
		return err
	},
	"images": func(ctx context.Context, s *openstack.Session, r *Resources) (err error) {
		r.Images, err = s.Images(ctx, "")
		return err
	},
	"networks": func(ctx context.Context, s *openstack.Session, r *Resources) (err error) {
		r.Networks, err = s.Networks(ctx)
		return err
	},
	"keypairs": func(ctx context.Context, s *openstack.Session, r *Resources) (err error) {
		r.KeyPairs, err = s.KeyPairs(ctx)
		return err
	},
	"security_groups": func(ctx context.Context, s *openstack.Session, r *Resources) (err error) {
		r.SecurityGroups, err = s.SecurityGroups(ctx)
		return err
	},
	"regions": func(ctx context.Context, s *openstack.Session, r *Resources) (err error) {
		r.Regions, err = s.Regions(ctx)
		return err
	},
	"zones": func(ctx context.Context, s *openstack.Session, r *Resources) (err error) {
		r.Zones, err = s.Zones(ctx)
		return err
	},
	"quota": func(ctx context.Context, s *openstack.Session, r *Resources) error {
		quota, err := s.Quota(ctx)
		if err == nil {
			r.Quota = &quota
		}
		return err
	},
}

// List lists all kinds concurrently, in a region of the catalog; empty is the region of this process. A kind that fails
// or takes too long is in Errors, beside the others; when all fail, the result is an error.
func (s service) List(
	ctx context.Context, who domain.Identity, token domain.Secret, region string, wanted []string,
) (found Resources, err error) {
	cloud := s.cloud.As(token, who.ProjectID).InRegion(region)
	errs := map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, kind := range wanted {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, s.timeout)
			defer cancel()
			if err := kinds[kind](ctx, cloud, &found); err != nil {
				mu.Lock()
				errs[kind] = err
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(errs) == len(wanted) {
		return found, worst(wanted, errs)
	}
	for kind, err := range errs {
		found.fail(kind, err)
	}
	return found, nil
}

// worst is the error when all kinds failed: unavailable, unless all have the same code.
func worst(wanted []string, errs map[string]error) error {
	first := errs[wanted[0]]
	for _, kind := range wanted {
		if apperr.CodeOf(errs[kind]) != apperr.CodeOf(first) {
			return apperr.Wrap(apperr.Unavailable, errs[kind], "no resource could be listed")
		}
	}
	return first
}

// DeleteKeyPair deletes a key pair of the caller, in the region of the process, where launches make them.
func (s service) DeleteKeyPair(ctx context.Context, who domain.Identity, token domain.Secret, name string) error {
	cloud := s.cloud.As(token, who.ProjectID)
	all, err := cloud.KeyPairs(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(pair domain.KeyPair) bool { return pair.Name == name }) {
		return apperr.New(apperr.NotFound, "there is no key pair %q", name)
	}
	return cloud.DeleteKeyPair(ctx, name)
}

// CreateKeyPair stores a public key for the caller, in the region of the process. Without one it makes a pair, and
// returns the private half, which it does not store. A request with an Idempotency-Key ends the comment of its public
// key with the request's id: an attempt after one without an answer replaces that pair, whose private half is lost.
func (s service) CreateKeyPair(
	ctx context.Context, who domain.Identity, token domain.Secret, name, public string,
) (made domain.KeyPair, private domain.Secret, err error) {
	cloud, isGiven := s.cloud.As(token, who.ProjectID), public != ""
	id, isKeyed, isResumed := domain.AttemptFrom(ctx)
	if !isGiven {
		comment := name
		if isKeyed {
			comment += " " + id.String()
		}
		if public, private, err = openstack.NewKey(comment); err != nil {
			return made, "", err
		}
	}
	if isResumed {
		all, err := cloud.KeyPairs(ctx)
		if err != nil {
			return made, "", err
		}
		for _, pair := range all {
			switch stored := strings.TrimSpace(pair.PublicKey); {
			case pair.Name != name:
			case isGiven && stored == strings.TrimSpace(public):
				return pair, "", nil
			case !isGiven && strings.HasSuffix(stored, " "+id.String()):
				if err := cloud.DeleteKeyPair(ctx, name); err != nil {
					return made, "", err
				}
			}
		}
	}
	made, err = cloud.ImportKeyPair(ctx, name, public)
	return made, private, err
}

// retrySeen is the Retry-After while run-connections has not read the resources yet.
const retrySeen = 5 * time.Second

// OfConnection gives what can be ordered through a connection, as run-connections last read it: only that function can
// decrypt delegated credentials.
func (s service) OfConnection(
	ctx context.Context, who domain.Identity, id uuid.UUID,
) (available domain.AvailableResources, age time.Duration, err error) {
	c, now, err := s.connections.Usable(ctx, who, id)
	if err == nil {
		err = c.Permits(now, domain.MayAllocate)
	}
	if err != nil {
		return available, 0, err
	}
	available, age, found, err := lookup.Resources(ctx, s.connections, s.wake, c)
	if err == nil && !found {
		none := apperr.New(apperr.Unavailable, "nothing was read through the connection %s yet", id)
		none.RetryAfter = retrySeen
		err = none
	}
	return available, age, err
}
