package run

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/audit"
	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/buildinfo"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/limit"
	"github.com/cloudfn/cloudfn/shared/obs"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

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
	routes    []httpx.Route
	events    []event
	starts    []func(ctx context.Context) error // see Deps.AtStart
	api       http.Handler                      // serves the routes

	settings     watchedSettings
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
	p := &Process{cfg: cfg, texts: texts, functions: functions}
	p.settings.env, p.settings.targets = env, targets
	if cfg.Target == "" {
		if err := keysFit(newSettings(env, targets)); err != nil {
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
		Authenticate: authenticator.Authenticate, Caller: auth.CallerOrNobody, Ready: p.log.Ready, Record: p.log.Record,
		Limits: limits, Known: authenticator.Known, CountRefused: p.log.CountRefused,
		BeginWrite:  postgres.EventLimit{DB: p.db, PerMinute: p.cfg.Limits.Events}.Begin,
		Keys:        postgres.KeyedRequests{DB: p.db},
		KeystoneURL: cmp.Or(p.cfg.PublicAuthURL, p.cloud.IdentityURL()), Timeout: p.cfg.RequestTimeout,
	}
	p.api = edge.Handler(p.routes)
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
	p.settings.close()
	p.db.Close()
	for _, cloud := range append(p.limited, p.cloud) {
		cloud.Close()
	}
	if err := p.telemetry.Stop(ctx); err != nil {
		slog.WarnContext(ctx, "telemetry", "error", err)
	}
}

// Main is the whole program. It returns the exit code.
func Main(texts Texts, functions ...Function) int {
	ctx := context.Background()
	all, err := list(functions)
	if err == nil {
		err = command(ctx, os.Args[1:], texts, all)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cloudfn:", strings.ReplaceAll(err.Error(), "\n", "\ncloudfn: "))
		return 1
	}
	return 0
}

func command(ctx context.Context, args []string, texts Texts, functions []function) error {
	switch {
	case len(args) == 1 && slices.Contains([]string{"help", "--help", "-h"}, args[0]):
		fmt.Print(usage)
		return nil
	case len(args) == 1 && slices.Contains([]string{"version", "--version"}, args[0]):
		fmt.Println(buildinfo.Version())
		return nil
	case len(args) == 1 && args[0] == "migrate":
		return migrate(ctx)
	case len(args) == 1 && args[0] == "gateway":
		return runGateway(ctx, functions)
	case len(args) == 1 && args[0] == "keys":
		return printKeys(os.Stdout)
	case len(args) == 2 && args[0] == "keys" && args[1] == "status":
		return printKeysStatus(ctx, envconfig.OsLookuper(), os.Stdout)
	case len(args) == 1 && args[0] == "check":
		return check(ctx, envconfig.OsLookuper(), os.Stdout, functions)
	case len(args) == 1 && args[0] == "projects", len(args) == 3 && args[0] == "projects" && args[1] == "end",
		len(args) == 4 && args[0] == "projects" && args[1] == "end" && args[3] == "--with-servers":
		return projects(ctx, envconfig.OsLookuper(), args[min(len(args), 2):], os.Stdout)
	case len(args) == 1 && args[0] == "trustee":
		return printTrustee(ctx, envconfig.OsLookuper(), os.Stdout)
	case len(args) == 1 && args[0] == "describe":
		return printDescription(os.Stdout, functions)
	case len(args) > 0:
		return fmt.Errorf("unknown command %q; `cloudfnd --help` lists the commands", strings.Join(args, " "))
	}
	// The functions framework would print a blank line to stdout and to stderr for every request on Knative.
	_ = os.Unsetenv("K_SERVICE")
	p, err := newProcess(ctx, envconfig.OsLookuper(), texts, os.Stderr, functions)
	if err != nil {
		return err
	}
	return p.serve(ctx)
}

// migrateTimeout bounds migrate, which may wait for another one to finish.
const migrateTimeout = 10 * time.Minute

func migrate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	cfg, err := load[postgres.Config](ctx, envconfig.OsLookuper())
	if err != nil {
		return err
	}
	applied, err := postgres.Migrate(ctx, cfg)
	for _, name := range applied {
		fmt.Println("applied", name)
	}
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	fmt.Println("the schema is at version", postgres.SchemaVersion)
	return nil
}
