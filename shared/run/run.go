// Package run turns registered functions into a running process: it loads the configuration, opens what is
// needed, serves, and drains. The same functions run one by one (FUNCTION_TARGET) or all in one daemon.
package run

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/obs"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// Config is what every process reads from its environment, whatever function it runs.
type Config struct {
	// Target is the function to serve; empty runs the daemon, which serves all of them.
	Target string `env:"FUNCTION_TARGET"`
	Listen
	// EventTimeout bounds the work of one event.
	EventTimeout time.Duration `env:"EVENT_TIMEOUT, default=5m"`
	// EventKey is what events must carry in the extension cloudfnkey, those that wake other functions too. An event function
	// needs one; the daemon makes one for its own ticks.
	EventKey domain.Secret `env:"EVENT_KEY"`
	// WakeURL is where event functions are woken, with {function} for the name. Without one, the daemon wakes its own, and
	// a function that runs alone wakes nobody.
	WakeURL string `env:"WAKE_URL"`

	Postgres  postgres.Config
	OpenStack openstack.Config
	Callers   auth.Config
	Logs      obs.Config
}

// Validate refuses a Config that cannot work, and names all that is wrong with it.
func (c Config) Validate() error {
	return errors.Join(c.validateEvents(), c.validateWakes(), c.Listen.Validate(), c.Postgres.Validate(), c.OpenStack.Validate(), c.Callers.Validate())
}

func (c Config) validateEvents() error {
	if c.EventTimeout < time.Second || c.EventTimeout > 10*time.Minute {
		return fmt.Errorf("EVENT_TIMEOUT is %s: it must be 1s to 10m (the longest that Knative waits)", c.EventTimeout)
	}
	return nil
}

func (c Config) validateWakes() error {
	if c.WakeURL == "" {
		return nil
	}
	if _, err := eventx.WakeURL(c.WakeURL, "function"); err != nil {
		return err
	}
	if c.EventKey == "" {
		return errors.New("EVENT_KEY is empty: with WAKE_URL set it must be the key of the functions there, which refuse to be woken without it")
	}
	return nil
}

type validator interface{ Validate() error }

// Listen is where a process serves, and for how long.
type Listen struct {
	// Host is the address to listen on; empty is 127.0.0.1 for the daemon and every address for all else.
	Host string `env:"HOST"`
	Port string `env:"PORT, default=8080"`
	// RequestTimeout bounds an API request.
	RequestTimeout time.Duration `env:"REQUEST_TIMEOUT, default=60s"`
}

// Validate refuses a Listen that cannot work.
func (l Listen) Validate() error {
	if l.RequestTimeout < time.Second || l.RequestTimeout > 10*time.Minute {
		return fmt.Errorf("REQUEST_TIMEOUT is %s: it must be 1s to 10m", l.RequestTimeout)
	}
	return nil
}

// Deps are what a function is built from. Nothing in it connects before it is used.
type Deps struct {
	DB    *postgres.DB
	Cloud *openstack.Cloud
	// Wake tells event functions, by their names, that there is work for them now. It returns at once and never fails:
	// whoever does not hear of it finds the work at the next tick.
	Wake func(functions ...string)
	// Functions is the way to the functions that serve HTTP.
	Functions Functions
}

// Schedule is when a PingSource wakes an event function, in cron's form, UTC.
type Schedule string

// Minutely is the only schedule: what is due less often follows from the database's clock.
const Minutely Schedule = "* * * * *"

func (Schedule) next(now time.Time) time.Time { return now.Truncate(time.Minute).Add(time.Minute) }

// function is a registered function, not yet built.
type function struct {
	name     string
	schedule Schedule                                        // "" for an HTTP function
	config   any                                             // a zero value, for the table of environment variables
	load     func(context.Context, envconfig.Lookuper) error // reads the config and says what is wrong with it
	build    func(context.Context, envconfig.Lookuper, Deps) (built, error)
	routes   func(context.Context) ([]httpx.Route, error) // to look at, not to serve; nil for an event function
}

type built struct {
	routes []httpx.Route
	event  eventx.Func
}

var registry []function

// HTTP registers a function that serves routes. build opens nothing by itself: the gateway runs it too, with C's
// defaults and without Deps, to see the routes' patterns. C is all that the function reads from its environment
// besides Config.
func HTTP[C any](name string, build func(C, Deps) ([]httpx.Route, error)) {
	register(function{name: name, config: *new(C), load: faults[C], build: func(ctx context.Context, env envconfig.Lookuper, d Deps) (built, error) {
		cfg, err := load[C](ctx, env)
		if err != nil {
			return built{}, err
		}
		routes, err := build(cfg, d)
		for i := range routes {
			routes[i].Function = name
		}
		return built{routes: routes}, err
	}, routes: func(ctx context.Context) ([]httpx.Route, error) {
		cfg, err := read[C](ctx, envconfig.MapLookuper(nil))
		if err != nil {
			return nil, err
		}
		return build(cfg, Deps{})
	}})
}

// Event registers a function that a PingSource wakes by its schedule.
func Event[C any](name string, schedule Schedule, build func(C, Deps) (eventx.Func, error)) {
	register(function{name: name, schedule: schedule, config: *new(C), load: faults[C], build: func(ctx context.Context, env envconfig.Lookuper, d Deps) (built, error) {
		cfg, err := load[C](ctx, env)
		if err != nil {
			return built{}, err
		}
		event, err := build(cfg, d)
		return built{event: event}, err
	}})
}

func register(f function) {
	if slices.ContainsFunc(registry, func(r function) bool { return r.name == f.name }) {
		panic("run: two functions are named " + f.name)
	}
	registry = append(registry, f)
}

// load reads a configuration from the environment and validates it.
func load[C any](ctx context.Context, env envconfig.Lookuper) (C, error) {
	cfg, err := read[C](ctx, env)
	if v, ok := any(cfg).(validator); ok && err == nil {
		return cfg, v.Validate()
	}
	return cfg, err
}

// faults says what is wrong with a configuration.
func faults[C any](ctx context.Context, env envconfig.Lookuper) error {
	_, err := load[C](ctx, env)
	return err
}

func read[C any](ctx context.Context, env envconfig.Lookuper) (C, error) {
	var cfg C
	if err := envconfig.ProcessWith(ctx, &envconfig.Config{Target: &cfg, Lookuper: filled{env}}); err != nil {
		return cfg, named(reflect.TypeFor[C](), err)
	}
	return cfg, nil
}

// named puts the variable's name before an error of envconfig, which only knows the path of the field.
func named(config reflect.Type, err error) error {
	for f := range config.Fields() {
		reason, found := strings.CutPrefix(err.Error(), f.Name+": ")
		switch name, _, _ := strings.Cut(f.Tag.Get("env"), ","); {
		case !found:
		case name != "":
			return fmt.Errorf("%s: %s", name, reason)
		case f.Type.Kind() == reflect.Struct:
			return named(f.Type, errors.New(reason))
		}
	}
	return err
}

// fields lists the variables of a configuration, those of the structs in it too.
func fields(config reflect.Type) []reflect.StructField {
	var list []reflect.StructField
	for f := range config.Fields() {
		switch {
		case f.Tag.Get("env") != "":
			list = append(list, f)
		case f.Type.Kind() == reflect.Struct:
			list = append(list, fields(f.Type)...)
		}
	}
	return list
}

// filled hides variables that are set to nothing: a default applies to them, as to absent ones.
type filled struct{ envconfig.Lookuper }

// Lookup implements envconfig.Lookuper.
func (f filled) Lookup(key string) (string, bool) {
	value, ok := f.Lookuper.Lookup(key)
	return value, ok && value != ""
}
