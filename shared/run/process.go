// Package run turns declared functions into a running process: it loads the configuration, opens what is
// needed, serves, and drains. The same functions run one by one (FUNCTION_TARGET) or all in one daemon.
package run

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/rs/cors"
	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/audit"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/flow"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/limit"
	"github.com/cloudfn/cloudfn/shared/obs"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// Deps are what a function is built from. Nothing in it connects before it is used.
type Deps struct {
	DB    *postgres.DB
	Cloud *openstack.Cloud
	// Wake wakes event functions by name. It returns immediately and never fails: the clock finds what a function that
	// is not reached has to do.
	Wake func(functions ...string)
	// Due is what all functions declare that is due, for the clock.
	Due []due.Declared
	// Post wakes an event function, and returns when that has answered: for the clock. nil = no function can be
	// reached.
	Post func(ctx context.Context, function string) error
	// AtStart has something done once when the process serves, and repeated until it has succeeded: what must not wait
	// for an event, because an event waits for it.
	AtStart func(do func(ctx context.Context) error)
	// Functions reaches the functions that serve HTTP.
	Functions Functions
}

// Account prepares the service account of a function that has rights of its own: that of the cloud in clouds.yaml which
// the variable names. If it names none, it is the login of a function that runs alone: the daemon's own login is for
// the functions that need fewer rights. nil = there is no account.
func (d Deps) Account(
	variable, cloud string, where openstack.Config, login openstack.Credentials,
) (*openstack.Account, error) {
	if cloud != "" {
		where.Cloud = cloud
		account, err := d.Cloud.Account(where, openstack.Credentials{})
		if err != nil {
			return nil, errors.New(strings.ReplaceAll(err.Error(), "OS_CLOUD", variable))
		}
		return account, nil
	}
	if !d.Functions.alone || where.Cloud == "" && !login.HasSecret() {
		return nil, nil //nolint:nilnil // an account is optional
	}
	return d.Cloud.Account(where, login)
}

// Process is one replica: the functions that it serves and what they share.
type Process struct {
	cfg       Config
	db        *postgres.DB
	cloud     *openstack.Cloud
	limited   []*openstack.Cloud // those of functions with CloudCalls
	log       *audit.Log
	telemetry *obs.Telemetry
	waker     *eventx.Waker
	texts     Texts
	functions []function // all, served here or not
	settings  *settings
	routes    []httpx.Route
	events    []event
	starts    []func(ctx context.Context) error // see Deps.AtStart
	api       http.Handler                      // serves the routes

	dependencies dependencies

	working    atomic.Int32       // events that functions of this process are woken for, without a request
	ending     context.CancelFunc // ends the waits of events for what is due later
	stopEvents context.CancelFunc // cancels the work of all events
}

type event struct {
	eventx.Handler
	schedule Schedule
}

// New prepares a process from its environment. It serves the function FUNCTION_TARGET, or all functions. It connects to
// nothing yet.
func New(
	ctx context.Context, env envconfig.Lookuper, texts Texts, logs io.Writer, functions ...Function,
) (*Process, error) {
	all, err := list(functions)
	if err != nil {
		return nil, err
	}
	return newProcess(ctx, env, texts, logs, all)
}

func newProcess(
	ctx context.Context, env envconfig.Lookuper, texts Texts, logs io.Writer, functions []function,
) (*Process, error) {
	cfg, err := load[Config](ctx, env)
	if err != nil {
		return nil, err
	}
	targets, err := chosen(functions, cfg.Target)
	if err != nil {
		return nil, err
	}
	if cfg.Target != "" && targets[0].Kind == kindEvent && cfg.EventKey == "" {
		return nil, fmt.Errorf("EVENT_KEY is empty: %s needs it to authenticate its events", cfg.Target)
	}
	p := &Process{cfg: cfg, texts: texts, functions: functions, settings: newSettings(env, targets)}
	if cfg.Target == "" {
		if err := p.settings.keysFit(ctx); err != nil {
			return nil, err
		}
	}
	if p.telemetry, err = obs.Start(ctx, cfg.Logs, serviceName(cfg.Target), logs, httpx.RequestID); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	if p.db, err = postgres.Open(cfg.Postgres, p.telemetry.Queries()); err != nil {
		return nil, err
	}
	if p.cloud, err = p.newCloud(0); err != nil {
		return nil, err
	}
	for _, warning := range p.cloud.Warnings() {
		slog.WarnContext(ctx, warning)
	}
	p.log = audit.New(postgres.Requests{DB: p.db}, p.db)
	p.dependencies.postgres, p.dependencies.keystone = p.log.Ready, p.cloud.Reachable
	if cfg.Target == "" && cfg.EventKey == "" {
		p.cfg.EventKey = domain.Secret(rand.Text()) // only the daemon's own ticker knows it
	}
	p.waker = eventx.NewWaker(p.wakes())
	return p, p.build(ctx, env, targets)
}

// newCloud prepares a cloud that limits the calls in flight to each of its services; 0 = no limit.
func (p *Process) newCloud(inFlight int) (*openstack.Cloud, error) {
	return openstack.New(p.cfg.OpenStack, openstack.Options{
		RequestID: httpx.RequestID, Wrap: p.telemetry.Client(), InFlight: inFlight,
	})
}

// cloudOf returns the cloud of a function. One that limits its calls has its own: its permits are no other function's.
func (p *Process) cloudOf(f function) (*openstack.Cloud, error) {
	if f.cloudCalls == 0 {
		return p.cloud, nil
	}
	cloud, err := p.newCloud(f.cloudCalls)
	if err == nil {
		p.limited = append(p.limited, cloud)
	}
	return cloud, err
}

func serviceName(target string) string {
	if target == "" {
		return "cloudfn"
	}
	return "cloudfn-" + target
}

func chosen(functions []function, target string) ([]function, error) {
	if target == "" {
		return functions, nil
	}
	names := make([]string, len(functions))
	for i, f := range functions {
		if names[i] = f.Name; f.Name == target {
			return functions[i : i+1], nil
		}
	}
	slices.Sort(names)
	return nil, fmt.Errorf("FUNCTION_TARGET is %q: it must be one of %s", target, strings.Join(names, ", "))
}

func (p *Process) build(ctx context.Context, env envconfig.Lookuper, targets []function) error {
	running, stop := context.WithCancel(ctx)
	p.stopEvents = stop
	waiting, ending := context.WithCancel(running)
	p.ending = ending
	deps := Deps{DB: p.db, Due: dueOf(p.functions)}
	deps.AtStart = func(do func(ctx context.Context) error) { p.starts = append(p.starts, do) }
	deps.Functions = Functions{
		all: p.functions, alone: p.cfg.Target != "", own: func() http.Handler { return p.api },
		client: p.telemetry.Client(),
	}
	for _, f := range targets {
		deps.Wake, deps.Post = p.wakesOf(f), p.postOf(f)
		var err error
		if deps.Cloud, err = p.cloudOf(f); err != nil {
			return err
		}
		b, err := f.build(ctx, env, deps)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		p.routes = append(p.routes, b.routes...)
		if b.event == nil {
			continue
		}
		p.events = append(p.events, event{schedule: f.Schedule, Handler: eventx.Handler{
			Name: f.Name, Types: []string{eventx.PingType, eventx.WakeType}, Key: p.cfg.EventKey,
			Timeout: p.cfg.EventTimeout, Running: running, Ending: waiting.Done(), Func: p.leaveToClock(f, b.event),
		}})
	}
	p.routes = append(p.routes, p.common()...)
	authenticator := auth.New(p.cfg.Callers, p.cloud.Validate)
	inFlight := daemonInFlight
	if scale := targets[0].Scale; p.cfg.Target != "" && scale.Concurrency > 0 {
		inFlight = scale.PerSource()
	}
	limits, err := limit.New(p.cfg.Limits, inFlight)
	if err != nil {
		return err
	}
	edge := httpx.Edge{
		Authenticate: authenticator.Authenticate, Caller: auth.CallerOrNone, Ready: p.log.Ready, Record: p.log.Record,
		Limits: limits, Known: authenticator.Known, CountRefused: p.log.CountRefused,
		BeginWrite:  postgres.EventLimit{DB: p.db, PerMinute: p.cfg.Limits.Events}.Begin,
		Keys:        postgres.KeyedRequests{DB: p.db},
		KeystoneURL: cmp.Or(p.cfg.PublicAuthURL, p.cloud.IdentityURL()), Timeout: p.cfg.RequestTimeout,
	}
	p.api = withCORS(edge.Handler(p.routes), p.cfg.CORSOrigins)
	return nil
}

// Handler serves the API at its full paths, and events at /events/{function}. An event function that runs alone also
// accepts them at the root, where a PingSource posts them.
func (p *Process) Handler() http.Handler {
	return p.telemetry.Server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e := p.eventAt(r); e != nil {
			e.ServeHTTP(w, r.WithContext(httpx.NewRequestID(r.Context())))
			return
		}
		p.api.ServeHTTP(w, r)
	}), serviceName(p.cfg.Target), p.isEvent)
}

// withCORS has browsers let the pages of some origins call the API: with a token in X-Auth-Token, and never with the
// console's cookie. A preflight request is answered before any limit, and without a row in the request log.
func withCORS(api http.Handler, origins []string) http.Handler {
	if len(origins) == 0 {
		return api
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{
			http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		},
		AllowedHeaders: []string{
			"Accept", "Content-Type", "Idempotency-Key", "If-Match", "If-None-Match", "X-Auth-Token", "X-Request-Id",
		},
		ExposedHeaders: []string{
			"ETag", "Idempotency-Replayed", "Link", "Location", "RateLimit", "RateLimit-Policy", "Retry-After",
			"X-Request-Id",
		},
		MaxAge: int(preflightFor.Seconds()),
	}).Handler(api)
}

// preflightFor is how long browsers keep the answer to a preflight request: none does so for longer.
const preflightFor = 2 * time.Hour

// isEvent reports whether a request has the key of events, so that another function has sent it.
func (p *Process) isEvent(r *http.Request) bool {
	given, key := r.Header.Get("Ce-"+eventx.KeyExtension), p.cfg.EventKey.Reveal()
	return key != "" && subtle.ConstantTimeCompare([]byte(given), []byte(key)) == 1
}

// eventAt returns the event function of a request. A ServeMux would redirect paths that are not clean before the API
// can answer them.
func (p *Process) eventAt(r *http.Request) *eventx.Handler {
	for i, e := range p.events {
		if r.URL.Path == "/events/"+e.Name || p.cfg.Target != "" && r.URL.Path == "/" && r.Method == http.MethodPost {
			return &p.events[i].Handler
		}
	}
	return nil
}

// Close flushes the request log and closes all connections. The process must have stopped serving.
func (p *Process) Close(ctx context.Context) {
	if err := p.log.Flush(ctx); err != nil {
		slog.ErrorContext(ctx, "flush", "error", err)
	}
	p.stopEvents() // before the database closes
	waking, cancel := context.WithTimeout(ctx, wakeGrace)
	p.waker.Close(waking)
	cancel()
	p.db.Close()
	for _, cloud := range append(p.limited, p.cloud) {
		cloud.Close()
	}
	if err := p.telemetry.Stop(ctx); err != nil {
		slog.WarnContext(ctx, "telemetry", "error", err)
	}
}

// wakes returns how this process wakes event functions: by HTTP at WAKE_URL, or else its own. Other functions wait for
// the clock.
func (p *Process) wakes() func(ctx context.Context, function string) error {
	if p.cfg.WakeURL != "" {
		return eventx.PostWakes(p.cfg.WakeURL, p.cfg.EventKey, p.cfg.EventTimeout+coldStart)
	}
	return p.wakeOwn
}

// wakesOf returns how a function wakes those that its declaration lists. Knative gives it neither a route nor the key
// for any other, so the daemon does not wake them either.
func (p *Process) wakesOf(f function) func(functions ...string) {
	return func(functions ...string) {
		for _, name := range functions {
			if !slices.Contains(f.Reach.Wakes, name) {
				slog.Error("a function wakes another one that its declaration does not list", "function", f.Name,
					"wakes", name)
				continue
			}
			p.waker.Wake(name)
		}
	}
}

// wakeOwn calls the function without HTTP: a process need not know its own address.
func (p *Process) wakeOwn(ctx context.Context, function string) error {
	i := slices.IndexFunc(p.events, func(e event) bool { return e.Name == function })
	if i < 0 {
		return nil
	}
	if err := p.work(ctx, p.events[i], eventx.Wake); err != nil {
		return fmt.Errorf("%w: %w", eventx.ErrNotDone, err)
	}
	return nil
}

// work does what an event of this process wakes.
func (p *Process) work(
	ctx context.Context, e event, made func(function string, key domain.Secret, now time.Time) cloudevents.Event,
) error {
	p.working.Add(1)
	defer p.working.Add(-1)
	return e.Work(httpx.NewRequestID(ctx), made(e.Name, p.cfg.EventKey, time.Now()))
}

// clockName is the function that wakes the others when something is due.
const clockName = "clock"

// postOf returns how the clock wakes a function; nil = it reaches none.
func (p *Process) postOf(f function) func(ctx context.Context, function string) error {
	if f.Name != clockName || p.cfg.Target != "" && p.cfg.WakeURL == "" {
		return nil
	}
	return p.wakes()
}

// leaveToClock returns an event's work that wakes the clock at its end if more is due within the next minute: the
// clock's last tick cannot know of it, and the function does not wait for what is not due soon.
func (p *Process) leaveToClock(f function, work eventx.Func) eventx.Func {
	if len(f.Due) == 0 || !slices.Contains(f.Reach.Wakes, clockName) {
		return work
	}
	return func(ctx context.Context, event cloudevents.Event) error {
		planRest := func() {
			reading, cancel := domain.Detached(ctx)
			defer cancel()
			// What is due already is left to the next tick: this event could not do it.
			isLater, err := postgres.IsDueLater(reading, p.db, f.Due, due.FollowFor)
			if err == nil && isLater {
				p.wakesOf(f)(clockName)
			}
		}
		defer planRest()
		return work(due.WithRest(ctx, planRest), event)
	}
}

// atStart does what functions have registered for when the process serves. What fails is repeated, with pauses.
func (p *Process) atStart(ctx context.Context) {
	var all sync.WaitGroup
	for _, do := range p.starts {
		all.Go(func() {
			for n := 1; ; n++ {
				limited, cancel := context.WithTimeout(ctx, startTimeout)
				err := do(limited)
				cancel()
				if err == nil || !flow.Sleep(ctx, flow.Backoff(startPause, longestStartPause, n)) {
					return
				}
				slog.WarnContext(ctx, "start failed", "error", err, "retry", true)
			}
		})
	}
	all.Wait()
}

const (
	startTimeout      = 30 * time.Second
	startPause        = time.Second
	longestStartPause = 30 * time.Second
)
