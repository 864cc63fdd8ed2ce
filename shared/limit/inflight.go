package limit

import (
	"sync"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// EnterAddress counts a request of an address as in flight until leave is called, once. It fails if the address has as
// many as it may have.
func (l *Limits) EnterAddress(address string) (leave func(), err error) {
	return l.addressesInFlight.enter(domain.AddressSource(address), "this address")
}

// EnterProject counts a request of a project as EnterAddress does.
func (l *Limits) EnterProject(id string) (leave func(), err error) {
	return l.projectsInFlight.enter(id, "this project")
}

// inFlight counts the requests in flight of the sources of one kind.
type inFlight struct {
	limit apperr.Limit

	mu  sync.Mutex
	now map[string]int // without those that have none
}

func newInFlight(name string, most int) *inFlight {
	return &inFlight{limit: apperr.Limit{Name: name, Quota: most}, now: map[string]int{}}
}

func (f *inFlight) enter(source, name string) (leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now[source] >= f.limit.Quota {
		return nil, f.limit.Exceeded(name, 0)
	}
	f.now[source]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.now[source]--; f.now[source] == 0 {
			delete(f.now, source)
		}
	}, nil
}
