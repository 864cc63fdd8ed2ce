// Package limit bounds how often one client, or one project, may send requests to a process.
package limit

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config is how many requests a process accepts.
type Config struct {
	// Address ranges of the proxies in front, such as `127.0.0.0/8,10.2.0.0/16`: `X-Forwarded-For` names the client
	// only when one of them sends it. When empty, the client is the address that connects.
	TrustedProxies []string `env:"TRUSTED_PROXIES"`
	// Requests a second that each process accepts from one address (IPv6: one /56) without a token that was
	// accepted before, and a hundred times as many in a burst.
	Address int `env:"ADDRESS_RATE_LIMIT, default=10" min:"1" max:"100000"`
	// Requests a second that each process accepts from one project, and ten times as many in a burst.
	Project int `env:"PROJECT_RATE_LIMIT, default=500" min:"1" max:"100000"`
	// Events a minute that the requests of one project may write in all replicas together, each counted once, and once
	// for each callback that gets it; a template counts as 20.
	Events int `env:"EVENT_RATE_LIMIT, default=12000" min:"1" max:"100000"`
}

// Validate rejects a Config that cannot work.
func (c Config) Validate() error {
	_, err := domain.ParseRanges("TRUSTED_PROXIES", c.TrustedProxies)
	return err
}

// A source may send its requests of a window in one burst. An address has more time for them: each of many functions
// accepts its requests, and those who share it sign in together.
const (
	addressWindow = 100 * time.Second
	projectWindow = 10 * time.Second
)

const maxSources = 10_000 // limiters in memory, of each kind: the least recently used goes first

// Limits are the limits of one process. They are safe for concurrent use.
type Limits struct {
	proxies            domain.Ranges
	addresses, project buckets
	now                func() time.Time

	addressesInFlight, projectsInFlight *inFlight
}

// New makes the limits of a valid Config. inFlight is how many requests of one source are served at a time.
func New(cfg Config, inFlight int) (*Limits, error) {
	trusted, err := domain.ParseRanges("TRUSTED_PROXIES", cfg.TrustedProxies)
	if err != nil {
		return nil, err
	}
	return &Limits{
		proxies:           trusted,
		addresses:         newBuckets("address", cfg.Address, addressWindow),
		project:           newBuckets("project", cfg.Project, projectWindow),
		now:               time.Now,
		addressesInFlight: newInFlight("address-in-flight", inFlight),
		projectsInFlight:  newInFlight("project-in-flight", inFlight),
	}, nil
}

// TakeAddress counts a request from an address. It fails if the address has used up its limit.
func (l *Limits) TakeAddress(address string) error {
	return l.addresses.take(domain.AddressSource(address), "this address", l.now())
}

// TakeProject counts a request of a project. It fails if the project has used up its limit.
func (l *Limits) TakeProject(id string) error { return l.project.take(id, "this project", l.now()) }

// buckets are the limiters of the sources of one kind.
type buckets struct {
	limit    apperr.Limit
	limiters *lru.Cache[string, *rate.Limiter]
}

func newBuckets(name string, perSecond int, window time.Duration) buckets {
	limiters, err := lru.New[string, *rate.Limiter](maxSources)
	if err != nil { // of a size that is not positive
		panic(err)
	}
	quota := perSecond * int(window/time.Second)
	return buckets{apperr.Limit{Name: name, Quota: quota, Window: window}, limiters}
}

func (b buckets) take(source, name string, now time.Time) error {
	perSecond := float64(b.limit.Quota) / b.limit.Window.Seconds()
	limiter, found := b.limiters.Get(source)
	if !found {
		limiter = rate.NewLimiter(rate.Limit(perSecond), b.limit.Quota)
		if other, exists, _ := b.limiters.PeekOrAdd(source, limiter); exists {
			limiter = other
		}
	}
	if limiter.AllowN(now, 1) {
		return nil
	}
	missing := 1 - limiter.TokensAt(now)
	return b.limit.Exceeded(name, time.Duration(missing/perSecond*float64(time.Second)))
}

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

// Client returns the address of the client of a request, without its port. Each trusted proxy appends the address that
// connected to it to X-Forwarded-For. Any client can forge the entries before the last untrusted one.
func (l *Limits) Client(r *http.Request) string {
	address, ok := parseAddress(r.RemoteAddr)
	if !ok {
		return r.RemoteAddr
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for n := len(hops) - 1; n >= 0 && l.proxies.Contains(address); n-- {
		hop, ok := parseAddress(strings.TrimSpace(hops[n]))
		if !ok {
			break
		}
		address = hop
	}
	return address.String()
}

// parseAddress reads an address with or without a port.
func parseAddress(text string) (netip.Addr, bool) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return address.Unmap().WithZone(""), err == nil
}
