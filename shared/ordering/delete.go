package ordering

import (
	"context"
	"errors"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// DeleteCounter is where calls to delete a server are counted.
type DeleteCounter interface {
	DeleteTried(ctx context.Context, i domain.Instance, since time.Time) error
}

// Deleter is the part of OpenStack that deletes servers.
type Deleter interface {
	DeleteServer(ctx context.Context, id string) error
}

// Delete asks Nova to delete the instance's server, and counts that among the calls since a moment, so that Nova is not asked for ever:
// see domain.Instance.NextDelete. A call that Nova may never have seen does not count.
func Delete(ctx context.Context, cloud Deleter, counter DeleteCounter, i domain.Instance, since time.Time) error {
	err := cloud.DeleteServer(ctx, i.ServerID)
	if err != nil && !Final(err) {
		return err
	}
	end, cancel := ending(ctx)
	defer cancel()
	return errors.Join(err, counter.DeleteTried(end, i, since))
}
