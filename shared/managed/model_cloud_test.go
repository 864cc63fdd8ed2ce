package managed

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/flow"
)

// modelObject is an object of the model: a server, a volume, an image, a secret or a load balancer.
type modelObject struct {
	kind      domain.Kind
	id        string
	label     string // its name when it was made
	member    uuid.UUID
	hasData   bool // it was ready once
	isDeleted bool
	isForeign bool // others have made it
	isHidden  bool // a read of it has ended with a 404 once although it exists
	madeAt    time.Time
	changes   []modelChange // that come with time
	server    domain.Server
	volume    domain.Volume
	image     domain.ImageDetail
	secret    domain.StoredSecret
	balancer  domain.LoadBalancer
	payload   string // of a secret
	userData  string // of a server
}

// modelChange is what becomes of an object some time after a call.
type modelChange struct {
	at time.Time
	do func()
}

func (o *modelObject) after(d time.Duration, do func()) {
	o.changes = append(o.changes, modelChange{time.Now().Add(d), do})
}

// modelCloud is a model of Nova, Cinder, Glance, Barbican and Octavia.
type modelCloud struct {
	mu      sync.Mutex
	objects []*modelObject
	groups  map[string]bool // server groups by name
	permit  func(*modelObject, *modelRun) (rule string)
	faults  []string // rules that calls have broken
	record  func(format string, args ...any)
}

// settle makes the changes that are due.
func (c *modelCloud) settle() {
	for {
		var next *modelObject
		for _, o := range c.objects {
			if len(o.changes) > 0 && !o.changes[0].at.After(time.Now()) &&
				(next == nil || o.changes[0].at.Before(next.changes[0].at)) {
				next = o
			}
		}
		if next == nil {
			return
		}
		do := next.changes[0].do
		next.changes = next.changes[1:]
		do()
	}
}

// of returns the objects of a kind that exist.
func (c *modelCloud) of(kind domain.Kind) (all []*modelObject) {
	c.settle()
	for _, o := range c.objects {
		if o.kind == kind && !o.isDeleted {
			all = append(all, o)
		}
	}
	return all
}

// get finds an object by its id.
func (c *modelCloud) get(kind domain.Kind, id string) (*modelObject, error) {
	for _, o := range c.of(kind) {
		if o.id == id {
			return o, nil
		}
	}
	return nil, apperr.New(apperr.NotFound, "there is no %s %s", kind, id)
}

func (c *modelCloud) add(o *modelObject) *modelObject {
	o.madeAt = time.Now()
	n := slices.IndexFunc(c.objects, func(other *modelObject) bool { // calls beside each other come in any order
		return other.madeAt.Equal(o.madeAt) && other.id > o.id
	})
	if n < 0 {
		n = len(c.objects)
	}
	c.objects = slices.Insert(c.objects, n, o)
	return o
}

// deletes reports whether an object may be deleted, and records that a rule is broken by that.
func (c *modelCloud) deletes(o *modelObject, by *modelRun) {
	rule := "it has no data yet"
	if o.hasData {
		rule = c.permit(o, by)
	}
	c.record("    %s %s (%.8s) is deleted: %s", o.kind, o.label, o.id, rule)
	if rule == "" {
		c.faults = append(c.faults, fmt.Sprintf("%s %s (%.8s) has data, and was deleted", o.kind, o.label, o.id))
	}
}

// modelRun is what one process does, and how its calls fail.
type modelRun struct {
	seed    uint64
	number  int           // of the process
	rate    int           // of a thousand calls so many fail
	slow    time.Duration // that each call takes
	isPoll  bool          // its calls take no time
	isDown  bool          // a cell of Nova
	during  int           // before so many of a thousand calls something is declared
	record  func(format string, args ...any)
	cancel  context.CancelFunc
	declare func(seed uint64)
	forced  func(name string) (how string) // a fault that is given for the call
	loaded  map[uuid.UUID]domain.Managed   // what was declared when the pass has begun

	mu     sync.Mutex
	counts map[string]uint64
	isDead bool
}

// The ways in which reads, lists, writes and writes of the database fail.
var (
	readFaults  = []string{"400", "401", "403", "404", "409", "429", "500", "503", "silent"}
	listFaults  = []string{"403", "404", "429", "500", "503", "silent", "short", "short", "short"}
	writeFaults = []string{
		"400", "401", "403", "404", "409", "429", "500", "503", "silent", "lost", "lost", "lost", "late", "late",
		"crash before", "crash after", "crash after", "crash late", "breaks", "breaks",
	}
	saveFaults = []string{"503", "lost", "crash before", "crash after", "fenced"}
)

// fault is how a call fails; "" = not at all. It depends on the seed and on the call, not on the order of calls that
// run beside each other.
func (r *modelRun) fault(method, key string, ways []string) string {
	name := method + " " + key
	if !r.isPoll {
		time.Sleep(r.jitter(name))
		if how := r.forced(name); how != "" {
			r.record("    %s: %s", name, how)
			return how
		}
	}
	if r.rate+r.during == 0 || r.dead() {
		return ""
	}
	n := r.random(name)
	if n>>40%1000 < uint64(r.during) {
		r.record("    before %s", name)
		r.declare(n)
	}
	if n%1000 >= uint64(r.rate) {
		return ""
	}
	how := ways[n/1000%uint64(len(ways))]
	r.record("    %s: %s", name, how)
	return how
}

// random is a number that follows from the seed and the number of a call.
func (r *modelRun) random(name string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[name]++
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", r.seed, name, r.counts[name])
	n := h.Sum64()
	n = (n ^ n>>31) * 0x9e3779b97f4a7c15
	return n ^ n>>29
}

// jitter is what a call takes besides its latency: calls that begin beside each other have an order.
func (r *modelRun) jitter(name string) time.Duration {
	return time.Duration(r.random("time of "+name) % uint64(time.Millisecond))
}

// newID is an id of what a call makes. One that two calls beside each other name alike is the id of either.
func (r *modelRun) newID(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[name]++
	return idOf(r.seed, r.number, name, r.counts[name])
}

// idOf is the id that follows from what it is of.
func idOf(of ...any) string { return uuid.NewSHA1(uuid.Nil, fmt.Append(nil, of...)).String() }

// die ends the process: none of its calls goes on.
func (r *modelRun) die() error {
	r.mu.Lock()
	r.isDead = true
	r.mu.Unlock()
	r.cancel()
	return context.Canceled
}

func (r *modelRun) dead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isDead
}

const (
	modelLatency = 20 * time.Millisecond
	lateBy       = 20 * time.Second // that a call works after it was sent and its client has lost it
	laterBy      = 50 * time.Second // for laterCalls
	silence      = time.Minute
)

// laterCalls are the calls that make an object which no order fences.
var laterCalls = []string{"CreateVolume", "CreateImage", "StoreSecret", "CreateLoadBalancer", "EnsureServerGroup"}

// keptLists are the calls that a session makes under a lock: no time may pass in them, because a bubble of synctest
// does not let time pass while a goroutine waits for a lock.
var keptLists = []string{"Flavors", "Networks", "Images", "EnsureServerGroup"}

// takes lets the time of a call pass.
func takes(ctx context.Context, method string, d time.Duration) {
	if !slices.Contains(keptLists, method) {
		flow.Sleep(ctx, d)
	}
}

// begin is how a call ends that does nothing.
func (r *modelRun) begin(ctx context.Context, method, how string) error {
	if !r.isPoll {
		takes(ctx, method, modelLatency+r.slow)
	}
	code := map[string]apperr.Code{
		"400": apperr.Invalid, "401": apperr.Unauthenticated, "403": apperr.Forbidden, "404": apperr.NotFound,
		"409": apperr.Conflict, "429": apperr.RateLimited, "500": apperr.BadGateway, "503": apperr.Unavailable,
	}[how]
	switch {
	case r.dead():
		return context.Canceled
	case code != "":
		return apperr.New(code, "%s fails with %s", method, how)
	case how == "unsent":
		return apperr.Wrap(apperr.Unavailable, apperr.ErrNotSent, "%s: the service cannot be reached", method)
	case how == "silent":
		takes(ctx, method, silence)
		return apperr.New(apperr.Timeout, "%s: no answer", method)
	}
	return ctx.Err()
}

// modelView is the cloud as one process reaches it.
type modelView struct {
	Cloud // what the model does not have

	c   *modelCloud
	run *modelRun
}

// list is a call that lists objects. get reports whether it leaves one out.
func modelList[T any](
	ctx context.Context, v modelView, method, key string, get func() ([]T, error),
) (all []T, err error) {
	ways := listFaults
	if key != "" { // what looks one object up is never short
		ways = slices.DeleteFunc(slices.Clone(ways), func(how string) bool { return how == "short" })
	}
	how := v.run.fault(method, key, ways)
	if err := v.run.begin(ctx, method, how); err != nil {
		return nil, err
	}
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	if all, err = get(); how == "short" && len(all) > 0 {
		n := int(v.run.seed % uint64(len(all)))
		all = slices.Delete(all, n, n+1)
	}
	return all, err
}

// modelRead is a call that reads an object.
func modelRead[T any](
	ctx context.Context, v modelView, method string, kind domain.Kind, id string, get func(*modelObject) T,
) (out T, err error) {
	v.c.mu.Lock()
	o, err := v.c.get(kind, id)
	v.c.mu.Unlock()
	if err != nil {
		return out, errorsOr(v.run.begin(ctx, method, ""), err)
	}
	how := v.run.fault(method, o.label, readFaults)
	if how == "404" { // twice would be a deletion
		if o.isHidden {
			how = ""
		}
		o.isHidden = true
	}
	if err := v.run.begin(ctx, method, how); err != nil {
		return out, err
	}
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	if o, err = v.c.get(kind, id); err == nil {
		out = get(o)
	}
	return out, err
}

func errorsOr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// write is a call that does something. do gets whether what it begins ends in an error.
func (v modelView) write(ctx context.Context, method, key string, do func(breaks bool) error) error {
	how := v.run.fault(method, key, writeFaults)
	locked := func() error {
		v.c.mu.Lock()
		defer v.c.mu.Unlock()
		v.c.settle()
		v.c.record("    %s %s", method, key)
		return do(how == "breaks")
	}
	isLate := strings.HasSuffix(how, "late")
	if isLate && !v.run.dead() {
		by := lateBy
		if slices.Contains(laterCalls, method) {
			by = laterBy
		}
		time.AfterFunc(by, func() { _ = locked() })
	}
	switch how {
	case "crash before", "crash late":
		return v.run.die()
	case "late":
		takes(ctx, method, silence)
		return apperr.New(apperr.Timeout, "%s: no answer", method)
	}
	if err := v.run.begin(ctx, method, how); err != nil {
		return err
	}
	err := locked()
	switch {
	case v.run.dead():
		return context.Canceled
	case how == "crash after":
		return v.run.die()
	case how == "lost" && err == nil:
		return apperr.New(apperr.Unavailable, "%s: the answer is lost", method)
	}
	return err
}

// change is a call that changes an object.
func (v modelView) change(
	ctx context.Context, method string, kind domain.Kind, id string, do func(o *modelObject, breaks bool) error,
) error {
	v.c.mu.Lock()
	o, err := v.c.get(kind, id)
	v.c.mu.Unlock()
	if err != nil {
		return errorsOr(v.run.begin(ctx, method, ""), err)
	}
	return v.write(ctx, method, o.label, func(breaks bool) error {
		if _, err := v.c.get(kind, id); err != nil {
			return err
		}
		if o.isForeign {
			v.c.faults = append(v.c.faults, fmt.Sprintf("%s changes the %s (%.8s)", method, o.label, o.id))
		}
		return do(o, breaks)
	})
}

// absentIsDeleted is how a deletion ends.
func absentIsDeleted(err error) error {
	if apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}
