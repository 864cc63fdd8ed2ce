package run

import (
	"encoding/json"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

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
				all = append(all, Variable{Name: name, Default: byDefault, ReadBy: reader})
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
