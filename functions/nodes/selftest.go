package nodes

import (
	"context"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/leases"
)

// selfTestTime bounds a self-test, which deletes its server after it. It is less than the time of a request.
const selfTestTime = 40 * time.Second

// SelfTest tests on a reservable host whether the cloud keeps servers without the trait off it, and records the result
// for all hosts. It takes the rights of who makes hosts reservable, and of who names a host for a server.
func (s service) SelfTest(ctx context.Context, who domain.Identity, token domain.Secret, name string) (node, error) {
	cloud := s.cloud.As(token, who.ProjectID)
	found, err := s.get(ctx, cloud, name)
	if err == nil {
		err = cloud.MayChangeAggregates(ctx)
	}
	if err != nil {
		return found, err
	}
	switch {
	case found.stored.Pool != domain.NodeReservable:
		return found, apperr.New(apperr.Conflict, "host %s is not reservable: only reservable hosts are isolated", name)
	case found.lease != nil && found.lease.From.Before(time.Now().Add(leases.ProbeMargin)):
		return found, apperr.New(apperr.Conflict, "lease %s has host %s until %s: test an idle host",
			found.lease.LeaseID, name, found.lease.Until.UTC().Format(time.RFC3339))
	}
	testing, cancel := context.WithTimeout(ctx, selfTestTime)
	defer cancel()
	result, err := cloud.ProbeHost(testing, name)
	if err == nil {
		err = s.isolations.Set(ctx, s.cloud.Region(), result.Result, result.Detail)
	}
	if err == nil {
		found.isolation, err = s.isolations.Get(ctx, s.cloud.Region())
	}
	return found, err
}
