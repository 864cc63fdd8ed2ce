package openstack

import (
	"context"
	"net/url"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"golang.org/x/sync/singleflight"
)

// get reads an answer of a service into a struct.
func get(ctx context.Context, client *gophercloud.ServiceClient, address string, into any) error {
	_, err := client.Get(ctx, address, into, &gophercloud.RequestOpts{})
	return classify(projectName(client.Type), err)
}

// getNova reads an answer of Nova. The elements of path need not be escaped.
func (s *Session) getNova(ctx context.Context, microversion string, into any, path ...string) error {
	nova, err := s.compute(ctx, microversion)
	if err != nil {
		return err
	}
	for n := range path {
		path[n] = url.PathEscape(path[n])
	}
	return get(ctx, nova, nova.ServiceURL(path...), into)
}

// shared makes one call for all who ask for the same key at once. The first caller's context does not end it: when that
// one hangs up, the others still wait.
func shared[T any](
	ctx context.Context, group *singleflight.Group, key, service string, timeout time.Duration,
	call func(context.Context) (T, error),
) (value T, err error) {
	answer := group.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		return call(ctx)
	})
	select {
	case r := <-answer:
		value, _ = r.Val.(T)
		return value, r.Err
	case <-ctx.Done():
		return value, classify(service, ctx.Err())
	}
}
