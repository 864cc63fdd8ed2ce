package lookup

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// slowStore fakes a database whose reads take a while, and that has the resources once a check was requested.
type slowStore struct {
	read     time.Duration
	never    bool
	requests int
}

func (s *slowStore) Resources(context.Context, string, uuid.UUID) (domain.SeenResources, time.Duration, bool, error) {
	time.Sleep(s.read)
	return domain.SeenResources{}, 0, s.requests > 0 && !s.never, nil
}

func (s *slowStore) RequestCheck(context.Context, string, uuid.UUID) (time.Time, error) {
	s.requests++
	return time.Time{}, nil
}

// TestResourcesOfSlowDatabase: the check is requested once, however long the first read takes.
func TestResourcesOfSlowDatabase(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]*slowStore{
		"fast": {}, "slow": {read: 400 * time.Millisecond}, "slower than the wait": {read: 20 * time.Second},
		"never checked": {never: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			wakes := 0
			_, _, found, err := Resources(t.Context(), store, func(...string) { wakes++ }, domain.Connection{})
			if err != nil || store.requests != 1 || wakes != 1 {
				t.Errorf("%s: %d requests, %d wakes, %v", name, store.requests, wakes, err)
			}
			if want := !store.never && store.read < resourceWait; found != want {
				t.Errorf("%s: found is %t", name, found)
			}
		})
	}
}
