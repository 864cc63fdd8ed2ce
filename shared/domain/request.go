package domain

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Request is a row of the request log: one API call. It never holds a token, a password, a query string or a body.
type Request struct {
	ID        uuid.UUID // version 7
	At        time.Time // when the row was written, by the database's clock
	Function  string    // "" when no function serves the path
	Method    string
	Path      string
	Status    int
	Duration  time.Duration // from the first byte read to the row written
	UserID    string        // "" when the token was rejected
	UserName  string
	ProjectID string
	DomainID  string
	RequestID string // req-<uuid>, as in X-Request-Id and sent to OpenStack
	Remote    string // the client's address, without its port
	Code      string // of the problem; "" = the answer is not a problem
	// Count is how many requests the row stands for: those that a rate limit refused before they were served share one
	// row per source and minute, which describes the first of them. 0 is stored as 1.
	Count int

	Used UsedConnection // zero = no connection
}

// RequestKind is a part of the request log.
type RequestKind string

// The parts that can be listed on their own.
const (
	RequestChanges RequestKind = "changes" // all methods but GET, HEAD and OPTIONS, without the console's sessions
	RequestErrors  RequestKind = "errors"  // status 400 or more
)

// RequestQuery selects rows of the request log.
type RequestQuery struct {
	View   View
	Since  time.Time // zero = no bound
	Limit  int
	Marker uuid.UUID // the last id of the page before; zero = the first page
	// Acted selects requests through connections: the View is of the connection, not of the token. ConnectionID is the
	// connection; zero = any.
	Acted        bool
	ConnectionID uuid.UUID
	Only         RequestKind // "" = all
}

// ShowsOrigin reports whether the view may show where a request came from: not of a request by another project through
// a connection.
func (v View) ShowsOrigin(r Request) bool {
	switch v.Scope {
	case ScopeProject:
		return r.ProjectID == v.ProjectID
	case ScopeDomain:
		return r.DomainID == v.DomainID
	}
	return v.Scope == ScopeCloud
}

// Actor is the user whose request caused a change, and the order or action that did it.
type Actor struct {
	UserID       string     `json:"user_id" minLength:"1"`
	UserName     string     `json:"user_name,omitempty" minLength:"1" doc:"As Keystone said it."`
	ProjectID    string     `json:"project_id" minLength:"1" doc:"Of the token that the request was made with."`
	ConnectionID *uuid.UUID `json:"connection_id,omitempty" doc:"The connection that was acted through."`
	OrderID      *uuid.UUID `json:"order_id,omitempty" doc:"The order that did it."`
	ActionID     *uuid.UUID `json:"action_id,omitempty" doc:"The action that did it: its id, when it has one."`
	Action       Action     `json:"action,omitempty" schema:"EventActorAction"`
}

// ActorOf returns the caller as an Actor; connection may be zero.
func ActorOf(who Identity, connection uuid.UUID) *Actor {
	a := &Actor{UserID: who.UserID, UserName: who.UserName, ProjectID: who.ProjectID}
	if connection != uuid.Nil {
		a.ConnectionID = &connection
	}
	return a
}

// Doing returns the actor with an action on a server. A nil actor stays nil; id may be zero.
func (a *Actor) Doing(action Action, id uuid.UUID) *Actor {
	if a == nil {
		return nil
	}
	doing := *a
	if doing.Action = action; id != uuid.Nil {
		doing.ActionID = &id
	}
	return &doing
}

// Ordering returns the actor of what an order does. A nil actor stays nil.
func (a *Actor) Ordering(order uuid.UUID) *Actor {
	if a == nil {
		return nil
	}
	ordering := *a
	ordering.OrderID = &order
	return &ordering
}

type (
	actorKey  struct{}
	recordKey struct{}
)

// WithActor attributes the changes that are written with the context to the actor; nil attributes them to no one.
func WithActor(ctx context.Context, actor *Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, actor)
}

// ActorFrom returns the actor of the changes that are written with the context; nil = no request caused them.
func ActorFrom(ctx context.Context) *Actor {
	actor, _ := ctx.Value(actorKey{}).(*Actor)
	return actor
}

// UsedConnection is the connection that a request used, and where its servers are.
type UsedConnection struct {
	ConnectionID uuid.UUID
	ProjectID    string
	DomainID     string
}

// ConnectionRecord collects, while a request is handled, which connection it uses: the request log shows it.
type ConnectionRecord struct {
	used atomic.Pointer[UsedConnection]
}

// WithConnectionRecord returns a context in which RecordConnection fills the record.
func WithConnectionRecord(ctx context.Context) (context.Context, *ConnectionRecord) {
	record := &ConnectionRecord{}
	return context.WithValue(ctx, recordKey{}, record), record
}

// RecordConnection records that the request uses a connection that its caller may use, even when the connection does
// not permit the request. Without a record in the context, as in a tick, it does nothing.
func RecordConnection(ctx context.Context, c Connection) {
	if record, ok := ctx.Value(recordKey{}).(*ConnectionRecord); ok {
		record.used.Store(&UsedConnection{ConnectionID: c.ID, ProjectID: c.ProjectID, DomainID: c.DomainID})
	}
}

// Used returns the connection that the request used; zero = none.
func (r *ConnectionRecord) Used() UsedConnection {
	if used := r.used.Load(); used != nil {
		return *used
	}
	return UsedConnection{}
}

// RequestHash is equal for two requests with one id that mean the same, however they are written: the request is
// decoded, with its defaults filled in. Secrets are given apart, because they do not marshal.
func RequestHash(request any, secrets ...string) [sha256.Size]byte {
	text, _ := json.Marshal([]any{request, secrets}) //nolint:errchkjson // it was decoded from JSON
	return sha256.Sum256(text)
}

// KeyedRequest is a request with an Idempotency-Key: its effect is there once, however often it is sent. Response is
// set when it is done; until then the replica that began it holds the claim.
type KeyedRequest struct {
	ProjectID  string
	KeyID      []byte // derived from the user and the key, which is stored nowhere
	RequestMAC []byte

	ID       uuid.UUID // of what the request makes, the same in every attempt
	Claim    Claim
	Resumed  bool   // an earlier attempt has no response; it may have made what has ID
	Response []byte // encrypted
}

type attemptKey struct{}

// WithAttempt returns a context in which AttemptFrom returns the attempt at a request.
func WithAttempt(ctx context.Context, attempt KeyedRequest) context.Context {
	return context.WithValue(ctx, attemptKey{}, attempt)
}

// AttemptFrom returns the ID of what a request makes. isKeyed is false when the request has no Idempotency-Key: then
// the ID is a new one. isResumed reports whether an earlier attempt may have made it.
func AttemptFrom(ctx context.Context) (id uuid.UUID, isKeyed, isResumed bool) {
	attempt, isKeyed := ctx.Value(attemptKey{}).(KeyedRequest)
	if !isKeyed {
		attempt.ID = uuid.Must(uuid.NewV7())
	}
	return attempt.ID, isKeyed, attempt.Resumed
}

// detachedFor bounds writes after the end of a request: a hanging database must not keep the process.
const detachedFor = 5 * time.Second

// Detached returns a context for writes that must happen even after the caller has disconnected or the deadline has
// passed. No limit refuses them: they store what was done.
func Detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(Accepted(context.WithoutCancel(ctx)), detachedFor)
}

// EventBudget is how many events and deliveries a minute the requests of a source may write.
type EventBudget struct {
	Source     string // a project
	PerMinute  int
	IsAccepted bool // what is written counts, and is never refused
}

type budgetKey struct{}

// WithEventBudget counts the events that are written with the context.
func WithEventBudget(ctx context.Context, b EventBudget) context.Context {
	return context.WithValue(ctx, budgetKey{}, b)
}

// EventBudgetFrom returns the budget of the events that are written with the context; zero = they do not count.
func EventBudgetFrom(ctx context.Context) EventBudget {
	b, _ := ctx.Value(budgetKey{}).(EventBudget)
	return b
}

// Accepted returns a context for the work of a request that was accepted: its events count, and none is refused.
func Accepted(ctx context.Context) context.Context {
	b := EventBudgetFrom(ctx)
	if b.Source == "" || b.IsAccepted {
		return ctx
	}
	b.IsAccepted = true
	return WithEventBudget(ctx, b)
}

// Claim is one replica's right to work on a row until it expires, so that a replica that died blocks no one. Every
// write of that work carries its ID, and fails with ErrFenced once another replica has claimed the row.
type Claim struct {
	ID       uuid.UUID
	Acquired bool      // false: another replica has it, or there is nothing left to do
	Fresh    bool      // the order was stored just now, so its servers were not requested from Nova yet
	At       time.Time // when a fresh order was stored, by the database's clock
	// Requested is before the claim began, by this process's clock.
	Requested time.Time
}

// NewClaim is a claim that is about to be acquired.
func NewClaim() Claim { return Claim{ID: uuid.New(), Requested: time.Now()} }

// ErrFenced means that another replica has claimed the row since: stop working immediately.
var ErrFenced = errors.New("another replica has claimed the row")

// IsSuperseded reports whether an error ends the work on a row: another replica has claimed it since, or another
// request has changed it.
func IsSuperseded(err error) bool { return errors.Is(err, ErrFenced) || errors.Is(err, ErrChanged) }

// AddressSource returns what counts as one source of requests: an IPv4 address, or the /56 of an IPv6 address, because
// a home has as many to choose from. Anything else is a source of its own.
func AddressSource(address string) string {
	parsed, err := netip.ParseAddr(address)
	if err != nil || parsed.Unmap().Is4() {
		return address
	}
	network, err := parsed.WithZone("").Prefix(56)
	if err != nil {
		return address
	}
	return network.String()
}

// ShortTime is a duration as people write it: 24h, not 24h0m0s.
func ShortTime(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}

// Ranges are ranges of addresses.
type Ranges []netip.Prefix

// Contains reports whether the address is in one of the ranges.
func (r Ranges) Contains(address netip.Addr) bool {
	return slices.ContainsFunc(r, func(one netip.Prefix) bool { return one.Contains(address) })
}

// ParseRanges reads the address ranges of a setting. An address is the range of itself.
func ParseRanges(variable string, texts []string) (Ranges, error) {
	ranges := make(Ranges, len(texts))
	for i, text := range texts {
		r, err := parseRange(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%s has %q: it must be a list of ranges, such as 10.1.0.0/16,fd00::/8", variable,
				text)
		}
		ranges[i] = r
	}
	return ranges, nil
}

func parseRange(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.Unmap().Prefix(addr.Unmap().BitLen()) // of an address with a zone too: zones are not looked at
	}
	r, err := netip.ParsePrefix(text)
	if err == nil && r.Addr().Is4In6() { // would hold no address: they are looked at as IPv4
		err = errors.New("IPv4 in the form of IPv6")
	}
	return r, err
}
