package testkit

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// Wakes stands for the event functions of a replica, and counts how often each is woken.
type Wakes struct {
	URL string // for WAKE_URL

	mu     sync.Mutex
	counts map[string]int
}

// NewWakes starts a server that accepts every wake.
func NewWakes(t testing.TB) *Wakes {
	t.Helper()
	w := &Wakes{counts: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.counts[strings.TrimPrefix(r.URL.Path, "/")]++
		rw.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(server.Close)
	w.URL = server.URL + "/{function}"
	return w
}

// Count returns how often a function was woken.
func (w *Wakes) Count(function string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[function]
}

// Await waits until a function was woken.
func (w *Wakes) Await(t testing.TB, function string) {
	t.Helper()
	Eventually(t, 10*time.Second, function+" is woken", func() bool { return w.Count(function) > 0 })
}

// After checks that a function is woken by what do does. No earlier wake of it may still be on its way.
func (w *Wakes) After(t testing.TB, function, what string, do func()) {
	t.Helper()
	before := w.Count(function)
	do()
	Eventually(t, 10*time.Second, what+" wakes "+function, func() bool { return w.Count(function) > before })
}
