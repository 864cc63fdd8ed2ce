package launch

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// facts are what a dry run compares an order with.
type facts struct {
	names

	quota        domain.Quota
	networks     []domain.Network
	free         map[string]map[int]float64 // addresses by network and IP version
	freeWithheld string                     // why those are unknown
	room         map[string]int             // servers that the hosts have room for, by flavor
	roomWithheld map[string]string          // why that is unknown
}

// gather reads what the checks need.
func gather(ctx context.Context, cloud cloud, req createOrder, found []resolved) (out facts, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(orders.Parallel)
	group.Go(func() (err error) {
		out.quota, err = cloud.Quota(ctx)
		return err
	})
	group.Go(func() (err error) {
		out.networks, err = cloud.Networks(ctx)
		return err
	})
	group.Go(func() (err error) {
		out.names, err = readNames(ctx, cloud, req)
		return err
	})
	out.space(ctx, group, cloud, found)
	err = group.Wait()
	return out, err
}

// space counts free addresses and room on the hosts. The cloud's policy may withhold both from the caller.
func (out *facts) space(ctx context.Context, group *errgroup.Group, cloud cloud, found []resolved) {
	out.room, out.roomWithheld = map[string]int{}, map[string]string{}
	var ids []string
	flavors := map[string]domain.Flavor{}
	for _, f := range found {
		ids = append(ids, f.spec.NetworkIDs...)
		flavors[f.flavor.ID] = f.flavor
	}
	slices.Sort(ids)
	if ids = slices.Compact(ids); len(ids) > 0 {
		group.Go(func() (err error) {
			out.free, err = cloud.FreeAddresses(ctx, ids)
			out.freeWithheld, err = whyWithheld(err)
			return err
		})
	}
	var mu sync.Mutex
	for id, f := range flavors {
		group.Go(func() error {
			room, err := cloud.Room(ctx, f)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				out.room[id] = room
			}
			out.roomWithheld[id], err = whyWithheld(err)
			return err
		})
	}
}

const withheld = "the cloud withholds it from this token"

// whyWithheld explains why something is unknown: the cloud's policy withholds it, or the service that knows it is
// absent. Any other error is returned.
func whyWithheld(err error) (string, error) {
	code := apperr.CodeOf(err)
	switch {
	case err == nil, code == apperr.Forbidden, code == apperr.NotFound:
		return withheld, nil
	case code == apperr.Unsupported, code == apperr.Unavailable:
		return apperr.As(err).Message, nil
	}
	return "", err
}
