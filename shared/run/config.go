package run

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/auth"
	"github.com/cloudfn/cloudfn/shared/domain"
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
	// Time limit of the work on one event.
	EventTimeout time.Duration `env:"EVENT_TIMEOUT, default=5m" min:"1s" max:"10m"`
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
	return errors.Join(c.validateWakes(), c.validatePublicURL(), c.Listen.Validate())
}

func (c Config) validatePublicURL() error {
	u, err := url.Parse(c.PublicAuthURL)
	isURL := err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.User == nil
	if c.PublicAuthURL != "" && (!isURL || strings.ContainsAny(c.PublicAuthURL, "\" \\")) {
		return errors.New("PUBLIC_AUTH_URL is no URL of Keystone: it must be like https://keystone.example.com/v3")
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
	// Time limit of an API request.
	RequestTimeout time.Duration `env:"REQUEST_TIMEOUT, default=60s" min:"1s" max:"10m"`
	// Sites whose pages may call the API from a browser, separated by commas, such as `https://portal.example.com`; `*`
	// is any site. When empty, no page but the console, which needs none. The gateway has it for its own errors.
	CORSOrigins []string `env:"CORS_ORIGINS"`
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
	return l.validateOrigins()
}

func (l Listen) validateOrigins() error {
	var errs []error
	for _, origin := range l.CORSOrigins {
		if origin != "*" && !isOrigin(origin) {
			errs = append(errs, fmt.Errorf("CORS_ORIGINS has %q: an origin must be as browsers send it, like "+
				"https://portal.example.com, or *", origin))
		}
	}
	return errors.Join(errs...)
}

// isOrigin reports whether browsers send a text as an origin: in ASCII, without a path and the scheme's own port.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	if err != nil || text != u.Scheme+"://"+u.Host || strings.ToLower(text) != text || !isHostName(u.Hostname()) &&
		net.ParseIP(u.Hostname()) == nil {
		return false
	}
	isASCII := !strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII })
	return isASCII && !strings.HasSuffix(u.Host, ":") &&
		(u.Scheme == "https" && u.Port() != "443" || u.Scheme == "http" && u.Port() != "80")
}

// load reads a configuration from the environment and validates it.
func load[C any](ctx context.Context, env envconfig.Lookuper) (C, error) {
	cfg, err := read[C](ctx, env)
	if err != nil {
		return cfg, err
	}
	return cfg, validate(reflect.ValueOf(cfg))
}

// validate checks the bounds of a configuration's variables, calls the Validate methods of the configuration and of its
// fields, and joins what they find. An embedded struct is left to the method of the one that embeds it.
func validate(config reflect.Value) error {
	errs := outOfBounds(config)
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
		return cfg, err
	}
	return cfg, nil
}

// fields lists the variables of a configuration, those of the structs in it too.
func fields(config reflect.Type) []reflect.StructField {
	var list []reflect.StructField
	for f := range config.Fields() {
		switch {
		case variable(f) != "":
			list = append(list, f)
		case f.Type.Kind() == reflect.Struct:
			list = append(list, fields(f.Type)...)
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

// Tags of a variable's field bound its value, whatever else a Validate method checks:
//
//	min:"1s" max:"10m"          the least and the most, of durations and numbers
//	zero:"no limit"             0 is permitted besides, and what it means
//	values:"required,optional"  the only texts

// allowed says which values the tags permit, as an error and docs/configuration.md say it; "" = they permit any.
func allowed(tag reflect.StructTag) string {
	least, most := tag.Get("min"), tag.Get("max")
	switch {
	case tag.Get("values") != "":
		return strings.ReplaceAll(tag.Get("values"), ",", " or ")
	case tag.Get("zero") != "":
		return least + " or more, or 0 for " + tag.Get("zero")
	case most != "":
		return least + " to " + most
	case least != "":
		return least + " at least"
	}
	return ""
}

// outOfBounds checks the variables of a configuration, those of the structs in it too.
func outOfBounds(config reflect.Value) (errs []error) {
	for f, value := range config.Fields() {
		switch name := variable(f); {
		case name == "" && value.Kind() == reflect.Struct:
			errs = append(errs, outOfBounds(value)...)
		case allowed(f.Tag) != "" && !isWithin(f.Tag, value):
			errs = append(errs, fmt.Errorf("%s is %v: it must be %s", name, value, allowed(f.Tag)))
		}
	}
	return errs
}

func isWithin(tag reflect.StructTag, value reflect.Value) bool {
	if values := tag.Get("values"); values != "" {
		return slices.Contains(strings.Split(values, ","), value.String())
	}
	n, most := value.Int(), tag.Get("max")
	return n == 0 && tag.Get("zero") != "" ||
		n >= bound(value.Type(), tag.Get("min")) && (most == "" || n <= bound(value.Type(), most))
}

// bound reads the text of a tag as a value of the field's type.
func bound(of reflect.Type, text string) int64 {
	if of == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		return int64(d)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// malformed returns what would be right if the value of a variable does not have the form of its type. The errors of
// envconfig are those of the parsers, and some do not name the variable.
func malformed(f reflect.StructField, env envconfig.Lookuper) error {
	name := variable(f)
	text, _ := env.Lookup(name)
	if text == "" {
		return nil
	}
	must := ""
	switch value := reflect.New(f.Type).Interface().(type) {
	case *time.Duration:
		if _, err := time.ParseDuration(text); err != nil {
			must = "a duration such as 30s, 10m or 2h"
		}
	case *slog.Level:
		if value.UnmarshalText([]byte(text)) != nil {
			must = "DEBUG, INFO, WARN or ERROR"
		}
	case *domain.Period:
		if err := value.UnmarshalText([]byte(text)); err != nil {
			must = fmt.Sprintf("an ISO 8601 duration such as PT8H, P2D or P1M (%s)", err)
		}
	case encoding.TextUnmarshaler:
		if err := value.UnmarshalText([]byte(text)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	case *bool:
		if _, err := strconv.ParseBool(text); err != nil {
			must = "true or false"
		}
	default:
		switch {
		case f.Type.Kind() >= reflect.Int && f.Type.Kind() <= reflect.Int64:
			if _, err := strconv.ParseInt(text, 0, f.Type.Bits()); err != nil {
				must = "a whole number"
			}
		case f.Type.Kind() >= reflect.Uint && f.Type.Kind() <= reflect.Uint64:
			if _, err := strconv.ParseUint(text, 0, f.Type.Bits()); err != nil {
				must = "a whole number, and not negative"
			}
		}
	}
	if must == "" {
		return nil
	}
	return fmt.Errorf("%s is %q: it must be %s", name, text, must)
}
