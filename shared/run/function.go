package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/cloudfn/cloudfn/shared/due"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// Function is one function's declaration: an HTTP or an Event.
type Function interface{ declared() function }

// HTTP declares a function that serves routes. C is its configuration besides Config, and S its service.
type HTTP[C, S any] struct {
	Name    string
	Summary string // what it does, for README's table
	Reach   Reach
	Secrets []string // Kubernetes Secrets, without the prefix cloudfn-
	Scale   Scale
	Build   func(C, Deps) (S, error) // opens nothing
	Routes  func(S) []httpx.Route    // must not call S: it gets a zero S to list the routes
}

// Event declares a function that is woken by events: by the function clock while something is due, by functions that
// have work for it, and by a PingSource of its own if it has a schedule.
type Event[C any] struct {
	Name     string
	Summary  string
	Schedule Schedule // "" = no PingSource
	// Due are the queries by which the clock finds that something is due, as in due.Declared.
	Due     []string
	Reach   Reach
	Secrets []string
	Scale   Scale
	// CloudCalls is how many calls to one service of OpenStack may be in flight in a process, so that one that hangs
	// does not take all of the function's workers; 0 = no limit.
	CloudCalls int
	Build      func(C, Deps) (eventx.Func, error)
}

// Reach is what a function may use: its grants and network policies.
type Reach struct {
	// Tables are the rights in Postgres by table, such as "select, insert" or "select (id, name), update (name)". What
	// every function needs for the request log and the schema's version is not listed.
	Tables map[string]string `json:"tables"`
	// Network are the policies egress-NAME of knative/base/network-policies.yaml, besides postgres.
	Network []string `json:"network"`
	// Wakes are the event functions that it wakes.
	Wakes []string `json:"wakes"`
}

// Scale is how many pods Knative runs, and how much each takes on.
type Scale struct {
	MaxPods     int `json:"max_pods"`
	Concurrency int `json:"concurrency"` // requests that a pod works on concurrently; others wait
	Target      int `json:"target"`      // concurrent requests beyond which another pod starts; 0 is Concurrency
}

// PerSource is how many of these requests one project, or one address without a known token, may have in flight in a
// pod. The rest is for others. It is more than Target: otherwise no project alone would start another pod.
func (s Scale) PerSource() int { return s.Concurrency * 4 / 5 }

// daemonInFlight is how many requests of one source the daemon works on concurrently. It has no slots to run out of,
// but memory.
const daemonInFlight = 200

// Schedule is the schedule of a PingSource in cron's format, UTC.
type Schedule string

// The schedules.
const (
	Minutely Schedule = "* * * * *" // each full minute: the clock's
	Hourly   Schedule = "0 * * * *" // each full hour
)

// The kinds of functions.
const (
	kindHTTP  = "http"
	kindEvent = "event"
)

// every is the time between two ticks; 0 = the schedule is unknown.
func (s Schedule) every() time.Duration {
	return map[Schedule]time.Duration{Minutely: time.Minute, Hourly: time.Hour}[s]
}

func (s Schedule) next(now time.Time) time.Time { return now.Truncate(s.every()).Add(s.every()) }

// function is a declaration without its types.
type function struct {
	Declaration
	// unbuilt returns the routes without a service, for their descriptions; nil for an event function. A process that
	// serves builds its own and does not call this: descriptions take megabytes.
	unbuilt    func() []httpx.Route
	config     any                                             // zero value, to list its variables
	load       func(context.Context, envconfig.Lookuper) error // reads and validates the config
	build      func(context.Context, envconfig.Lookuper, Deps) (built, error)
	cloudCalls int // see Event.CloudCalls
}

type built struct {
	routes []httpx.Route
	event  eventx.Func
}

func (h HTTP[C, S]) declared() function {
	d := Declaration{
		Name: h.Name, Kind: kindHTTP, Summary: h.Summary, Reach: h.Reach, Secrets: h.Secrets, Scale: h.Scale,
	}
	return declare(d, func() []httpx.Route { return h.Routes(*new(S)) }, func(cfg C, deps Deps) (built, error) {
		s, err := h.Build(cfg, deps)
		if err != nil {
			return built{}, err
		}
		routes := h.Routes(s)
		for i := range routes {
			routes[i].Function = h.Name
		}
		return built{routes: routes}, nil
	})
}

func (e Event[C]) declared() function {
	d := Declaration{
		Name: e.Name, Kind: kindEvent, Summary: e.Summary, Schedule: e.Schedule, Due: e.Due, Reach: e.Reach,
		Secrets: e.Secrets, Scale: e.Scale,
		Routes: []string{"POST /events/" + e.Name},
	}
	f := declare(d, nil, func(cfg C, deps Deps) (built, error) {
		event, err := e.Build(cfg, deps)
		return built{event: event}, err
	})
	f.cloudCalls = e.CloudCalls
	return f
}

func declare[C any](d Declaration, unbuilt func() []httpx.Route, build func(C, Deps) (built, error)) function {
	d.Variables = names(reflect.TypeFor[C]())
	return function{
		Declaration: d, unbuilt: unbuilt, config: *new(C), load: faults[C],
		build: func(ctx context.Context, env envconfig.Lookuper, deps Deps) (built, error) {
			cfg, err := load[C](ctx, env)
			if err != nil {
				return built{}, err
			}
			return build(cfg, deps)
		},
	}
}

// Describe returns a function's declaration as data.
func Describe(f Function) Declaration {
	d, _ := f.declared().described()
	return d
}

// described returns the declaration with the patterns of its routes, and these routes, without a service.
func (f function) described() (d Declaration, routes []httpx.Route) {
	if d = f.Declaration; f.unbuilt == nil {
		return d, nil
	}
	for _, route := range f.unbuilt() {
		d.Routes, routes = append(d.Routes, route.Pattern), append(routes, route)
	}
	return d, routes
}

func isMinutely(f function) bool { return f.Schedule == Minutely }

// dueOf returns what the functions declare that is due.
func dueOf(functions []function) (all []due.Declared) {
	for _, f := range functions {
		if len(f.Due) > 0 {
			all = append(all, due.Declared{Function: f.Name, SQL: f.Due})
		}
	}
	return all
}

// list returns the declarations of functions, whose names must differ.
func list(functions []Function) ([]function, error) {
	var all []function
	for _, f := range functions {
		d := f.declared()
		if slices.ContainsFunc(all, func(other function) bool { return other.Name == d.Name }) {
			return nil, fmt.Errorf("two functions have the name %s", d.Name)
		}
		switch {
		case d.Schedule != "" && d.Schedule.every() == 0:
			return nil, fmt.Errorf("%s: schedule is %q; it must be run.Minutely, run.Hourly or empty", d.Name,
				d.Schedule)
		case d.Kind == kindEvent && d.Schedule == "" && len(d.Due) == 0:
			return nil, fmt.Errorf("%s: no one wakes it; it needs Due, for the clock, or a schedule", d.Name)
		case d.Schedule == Minutely && slices.ContainsFunc(all, isMinutely):
			return nil, fmt.Errorf("%s has a PingSource every minute; only one function may have that", d.Name)
		}
		all = append(all, d)
	}
	if len(all) == 0 {
		return nil, errors.New("no function is declared")
	}
	return all, nil
}

// Declaration is what a function declares, as data for manifests, grants, documentation and tests.
type Declaration struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"` // http or event
	Summary   string   `json:"summary"`
	Schedule  Schedule `json:"schedule,omitempty"`
	Due       []string `json:"due,omitempty"` // as in due.Declared
	Reach     Reach    `json:"reach"`
	Secrets   []string `json:"secrets"`
	Scale     Scale    `json:"scale"`
	Variables []string `json:"variables"` // of its own configuration
	Routes    []string `json:"routes"`    // as http.ServeMux takes them
}

// Description describes the binary.
type Description struct {
	Functions []Declaration `json:"functions"`
	Variables []Variable    `json:"variables"`
	Routes    []string      `json:"routes"` // what the daemon serves
	OpenAPI   []OpenAPI     `json:"openapi"`
}

// OpenAPI is the part of openapi.yaml for some routes.
type OpenAPI struct {
	Paths   json.RawMessage `json:"paths"`
	Schemas json.RawMessage `json:"schemas"`
}

// Variable is an environment variable that something reads.
type Variable struct {
	Name    string   `json:"name"`
	Default string   `json:"default"`
	Values  string   `json:"values"`  // that its bounds permit; "" = it has none
	ReadBy  []string `json:"read_by"` // functions, or the command gateway; null when every process does
}

// describe lists everything once, by name.
func describe(functions []function) (Description, error) {
	d := Description{Variables: variables(functions), Routes: []string{"GET /healthz"}}
	routes := (&Process{}).common()
	for _, r := range routes {
		d.Routes = append(d.Routes, r.Pattern)
	}
	for _, f := range functions {
		declaration, unbuilt := f.described()
		routes = append(routes, unbuilt...)
		d.Functions = append(d.Functions, declaration)
		d.Routes = append(d.Routes, declaration.Routes...)
	}
	slices.SortFunc(d.Functions, func(a, b Declaration) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(d.Routes)
	for _, described := range httpx.Documents(routes) {
		paths, err := json.Marshal(described.Paths)
		if err != nil {
			return d, err
		}
		schemas, err := json.Marshal(described.Components.Schemas)
		if err != nil {
			return d, err
		}
		d.OpenAPI = append(d.OpenAPI, OpenAPI{Paths: paths, Schemas: schemas})
	}
	return d, nil
}

func printDescription(out io.Writer, functions []function) error {
	d, err := describe(functions)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(d)
}

// variables lists every environment variable once: those of every process, the gateway's, and the functions'.
func variables(functions []function) []Variable {
	var all []Variable
	add := func(config any, reader ...string) {
		for _, f := range fields(reflect.TypeOf(config)) {
			name, options, _ := strings.Cut(f.Tag.Get("env"), ",")
			i := slices.IndexFunc(all, func(v Variable) bool { return v.Name == name })
			if i < 0 {
				_, byDefault, _ := strings.Cut(options, "default=")
				all = append(all, Variable{
					Name: name, Default: byDefault, Values: allowed(f.Tag), ReadBy: reader,
				})
			} else if all[i].ReadBy != nil && len(reader) > 0 && !slices.Contains(all[i].ReadBy, reader[0]) {
				all[i].ReadBy = append(all[i].ReadBy, reader[0])
			}
		}
	}
	add(Config{})
	add(gatewayConfig{}, "gateway")
	for _, f := range functions {
		add(f.config, f.Name)
	}
	for _, v := range all {
		slices.Sort(v.ReadBy)
	}
	return all
}

// names lists the variables of a configuration.
func names(config reflect.Type) []string {
	found := []string{}
	for _, f := range fields(config) {
		found = append(found, variable(f))
	}
	return found
}

// variable is the name of the variable that a field is read from.
func variable(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("env"), ",")
	return name
}

// Role returns the function's database role on Knative.
func (d Declaration) Role() string { return "cloudfn_" + strings.ReplaceAll(d.Name, "-", "_") }

// Rights returns the rights on tables, including the schema's version and the request log.
func (d Declaration) Rights() map[string]string {
	rights := map[string]string{postgres.VersionTable: "select"}
	maps.Copy(rights, d.Reach.Tables)
	if d.Kind == "http" {
		rights["requests"] += " insert"
	}
	return rights
}

// Egress lists the network policies for outgoing connections.
func (d Declaration) Egress() []string {
	policies := append([]string{"pgbouncer"}, d.Reach.Network...)
	if len(d.Reach.Wakes) > 0 {
		policies = append(policies, "functions")
	}
	slices.Sort(policies)
	return slices.Compact(policies)
}

// Connections returns the most database connections of a pod.
func (d Declaration) Connections() int {
	if d.Kind == "event" {
		return 2
	}
	return 4 // DATABASE_MAX_CONNS
}

// Prefixes returns the prefixes of the function's paths.
func (d Declaration) Prefixes() (prefixes []string) {
	for _, pattern := range d.Routes {
		if match := routePrefix.FindStringSubmatch(pattern); match != nil {
			prefixes = append(prefixes, match[1]+match[2])
		}
	}
	slices.Sort(prefixes)
	return slices.Compact(prefixes)
}
