package pollinstances

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// held are the lists of servers that an event has claimed and not released. The zero value has none.
type held struct {
	mu    sync.Mutex
	lists map[string]bool // by project; "" is the whole cloud
}

func (h *held) add(claimed ...domain.Poll) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lists == nil {
		h.lists = map[string]bool{}
	}
	for _, p := range claimed {
		h.lists[p.ProjectID] = true
	}
}

// remove is called before the lists are released, so that a renewal at the same time does not miss them.
func (h *held) remove(list string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.lists, list)
}

func (h *held) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.lists))
}

func (h *held) any(is func(list string) bool) bool { return slices.ContainsFunc(h.all(), is) }

func (e *event) release(ctx context.Context, list string) error {
	e.held.remove(list)
	return e.polls.Release(ctx, e.claim, list)
}
