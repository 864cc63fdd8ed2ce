package run

import (
	"reflect"
	"slices"
	"strings"
)

// Names lists the registered functions.
func Names() []string {
	names := make([]string, len(registry))
	for i, f := range registry {
		names[i] = f.name
	}
	slices.Sort(names)
	return names
}

// Variable is an environment variable that something reads.
type Variable struct {
	Name     string
	Default  string
	Function string // or the command that reads it; "" when every process does
}

// Variables lists every environment variable once, for the documentation and its test.
func Variables() []Variable {
	var list []Variable
	add := func(config any, function string) {
		for _, f := range fields(reflect.TypeOf(config)) {
			name, options, _ := strings.Cut(f.Tag.Get("env"), ",")
			if !slices.ContainsFunc(list, func(v Variable) bool { return v.Name == name }) {
				_, byDefault, _ := strings.Cut(options, "default=")
				list = append(list, Variable{Name: name, Default: byDefault, Function: function})
			}
		}
	}
	add(Config{}, "")
	add(gatewayConfig{}, "gateway")
	for _, f := range registry {
		add(f.config, f.name)
	}
	return list
}
