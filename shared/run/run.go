// Package run turns declared functions into a running process: it loads the configuration, opens what is
// needed, serves, and drains. The same functions run one by one (FUNCTION_TARGET) or all in one daemon.
package run

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/limit"
	"github.com/cloudfn/cloudfn/shared/obs"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// Config is what every process reads from its environment, whatever function it runs.
type Config struct {
	// The function to serve; when empty, the process is the daemon.
	Target string `env:"FUNCTION_TARGET"`
	Listen
	// Time limit of the work on one event, 1s to 10m.
	EventTimeout time.Duration `env:"EVENT_TIMEOUT, default=5m"`
	// Shared secret that an event must carry in its extension `cloudfnkey`. An event function does not start without
	// it; the daemon generates one.
	EventKey domain.Secret `env:"EVENT_KEY"`
	// Where event functions are woken when there is work, such as `http://{function}.cloudfn.svc.cluster.local`. When
	// empty, the daemon wakes its own functions, and a function that runs alone leaves the work to the clock.
	WakeURL string `env:"WAKE_URL"`

	// Keystone's URL as callers reach it, such as `https://keystone.example.com/v3`: 401 names it in
	// `WWW-Authenticate`. When empty, the URL by which this process reaches Keystone.
	PublicAuthURL string `env:"PUBLIC_AUTH_URL"`

	Postgres  postgres.Config
	OpenStack openstack.Config
	Callers   auth.Config
	Limits    limit.Config
	Logs      obs.Config
}

// Validate reports every value of the process's own variables that cannot work.
func (c Config) Validate() error {
	return errors.Join(c.validateEvents(), c.validateWakes(), c.validatePublicURL(), c.Listen.Validate())
}

func (c Config) validatePublicURL() error {
	u, err := url.Parse(c.PublicAuthURL)
	isURL := err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil
	if c.PublicAuthURL != "" && (!isURL || strings.ContainsAny(c.PublicAuthURL, "\" \\")) {
		return errors.New("PUBLIC_AUTH_URL is no URL of Keystone: it must be like https://keystone.example.com/v3")
	}
	return nil
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
		return errors.New(
			"EVENT_KEY is empty: with WAKE_URL set it must be the key of the functions there, which refuse to be " +
				"woken without it",
		)
	}
	return nil
}

type validator interface{ Validate() error }

// Listen is the address and the time limit of a server.
type Listen struct {
	// Address to listen on; when empty, 127.0.0.1 for the daemon and all addresses for a function or the gateway.
	Host string `env:"HOST"`
	// Port to listen on.
	Port string `env:"PORT, default=8080"`
	// Time limit of an API request, 1s to 10m.
	RequestTimeout time.Duration `env:"REQUEST_TIMEOUT, default=60s"`
}

// isHostName reports whether a text can be a host name. One of digits and dots only would be an address.
func isHostName(text string) bool {
	isOther := func(r rune) bool {
		return r > 'z' || !strings.ContainsRune("-._", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	return len(text) <= 253 && !strings.ContainsFunc(text, isOther) && strings.Trim(text, "-.") == text &&
		strings.Trim(text, "0123456789.") != ""
}

// Validate fails on a Listen that cannot work.
func (l Listen) Validate() error {
	if _, err := strconv.ParseUint(l.Port, 10, 16); err != nil {
		return fmt.Errorf("PORT is %q: it must be a number, 0 to 65535", l.Port)
	}
	_, err := netip.ParseAddr(l.Host)
	if l.Host != "" && err != nil && !isHostName(l.Host) {
		return fmt.Errorf("HOST is %q: it must be an address or a name of this machine, such as 127.0.0.1", l.Host)
	}
	if l.RequestTimeout < time.Second || l.RequestTimeout > 10*time.Minute {
		return fmt.Errorf("REQUEST_TIMEOUT is %s: it must be 1s to 10m", l.RequestTimeout)
	}
	return nil
}

// Deps are what a function is built from. Nothing in it connects before it is used.
type Deps struct {
	DB    *postgres.DB
	Cloud *openstack.Cloud
	// Wake wakes event functions by name. It returns at once and never fails: the clock finds what a function that is
	// not reached has to do.
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

// load reads a configuration from the environment and validates it.
func load[C any](ctx context.Context, env envconfig.Lookuper) (C, error) {
	cfg, err := read[C](ctx, env)
	if err != nil {
		return cfg, err
	}
	return cfg, validate(reflect.ValueOf(cfg))
}

// validate calls the Validate methods of a configuration and of its fields, and joins what they find. An embedded
// struct is left to the method of the one that embeds it.
func validate(config reflect.Value) error {
	var errs []error
	if v, ok := reflect.TypeAssert[validator](config); ok {
		errs = append(errs, v.Validate())
	}
	for f, value := range config.Fields() {
		if v, ok := reflect.TypeAssert[validator](value); ok && !f.Anonymous {
			errs = append(errs, v.Validate())
		}
	}
	return errors.Join(errs...)
}

// faults returns what is wrong with a configuration.
func faults[C any](ctx context.Context, env envconfig.Lookuper) error {
	_, err := load[C](ctx, env)
	return err
}

func read[C any](ctx context.Context, env envconfig.Lookuper) (C, error) {
	var cfg C
	if err := envconfig.ProcessWith(ctx, &envconfig.Config{Target: &cfg, Lookuper: filled{env}}); err != nil {
		for _, f := range fields(reflect.TypeFor[C]()) {
			if err := malformed(f, filled{env}); err != nil {
				return cfg, err
			}
		}
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
		name, options, _ := strings.Cut(f.Tag.Get("env"), ",")
		prefix, _ := strings.CutPrefix(strings.TrimSpace(options), "prefix=")
		switch {
		case name != "":
			list = append(list, f)
		case f.Type.Kind() == reflect.Struct:
			for _, inner := range fields(f.Type) {
				if prefix != "" {
					inner.Tag = reflect.StructTag(fmt.Sprintf("env:%q", prefix+inner.Tag.Get("env")))
				}
				list = append(list, inner)
			}
		}
	}
	return list
}

// filled hides empty variables, so that defaults apply to them.
type filled struct{ envconfig.Lookuper }

// Lookup implements envconfig.Lookuper.
func (f filled) Lookup(key string) (string, bool) {
	value, ok := f.Lookuper.Lookup(key)
	return value, ok && value != ""
}
