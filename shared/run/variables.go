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

// EventNames lists those of them that are woken by events; all others serve HTTP.
func EventNames() []string {
	var names []string
	for _, f := range registry {
		if f.schedule != "" {
			names = append(names, f.name)
		}
	}
	slices.Sort(names)
	return names
}

// Variable is an environment variable that something reads.
type Variable struct {
	Name    string
	Default string
	ReadBy  []string // functions, or the command gateway; nil when every process does
}

// Variables lists every environment variable once, for the documentation and its test.
func Variables() []Variable {
	var list []Variable
	add := func(config any, reader ...string) {
		for _, f := range fields(reflect.TypeOf(config)) {
			name, options, _ := strings.Cut(f.Tag.Get("env"), ",")
			i := slices.IndexFunc(list, func(v Variable) bool { return v.Name == name })
			if i < 0 {
				_, byDefault, _ := strings.Cut(options, "default=")
				list = append(list, Variable{Name: name, Default: byDefault, ReadBy: reader})
			} else if list[i].ReadBy != nil && len(reader) > 0 && !slices.Contains(list[i].ReadBy, reader[0]) {
				list[i].ReadBy = append(list[i].ReadBy, reader[0])
			}
		}
	}
	add(Config{})
	add(gatewayConfig{}, "gateway")
	for _, f := range registry {
		add(f.config, f.name)
	}
	for _, v := range list {
		slices.Sort(v.ReadBy)
	}
	return list
}
