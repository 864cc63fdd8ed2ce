package openstack

import (
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// catalogCache keeps catalogs by scope. It is not an expirable.LRU, because that starts a goroutine which never ends,
// and there is a catalogCache for each other cloud.
type catalogCache struct {
	now     func() time.Time
	entries *lru.Cache[string, keptCatalog]
}

type keptCatalog struct {
	catalog catalog
	at      time.Time
}

const maxCatalogs = 1000

func newCatalogCache() *catalogCache {
	return &catalogCache{now: time.Now, entries: newCache[keptCatalog](maxCatalogs)}
}

// Add keeps a scope's catalog for catalogTTL.
func (c *catalogCache) Add(scope string, found catalog) {
	c.entries.Add(scope, keptCatalog{found, c.now()})
}

// Get is the catalog that is kept of a scope.
func (c *catalogCache) Get(scope string) (catalog, bool) {
	kept, ok := c.entries.Get(scope)
	if !ok || c.now().Sub(kept.at) > catalogTTL {
		return nil, false
	}
	return kept.catalog, true
}

func newCache[V any](size int) *lru.Cache[string, V] {
	cache, err := lru.New[string, V](size)
	if err != nil {
		panic(err) // only of a size that is not positive
	}
	return cache
}
