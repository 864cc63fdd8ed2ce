package run

import (
	"context"
	"reflect"
	"slices"
	"strings"

	"github.com/sethvargo/go-envconfig"
)

// settings are the environment variables of a process, and the results of their tests.
type settings struct {
	env   envconfig.Lookuper
	names []string // every variable that the process reads, in the order of docs/configuration.md

	wrong   map[string]string // by variable: what is wrong and what would be right; "" = no variable
	untried map[string]string // by variable: why it was not tested
	notes   map[string]string // by variable: the result of a test that passed
}

func newSettings(env envconfig.Lookuper, targets []function) *settings {
	s := &settings{
		env: filled{env}, wrong: map[string]string{}, untried: map[string]string{}, notes: map[string]string{},
	}
	all := names(reflect.TypeFor[Config]())
	for _, f := range targets {
		all = append(all, f.Variables...)
	}
	for _, name := range all {
		if !slices.Contains(s.names, name) {
			s.names = append(s.names, name)
		}
	}
	return s
}

func (s *settings) value(name string) string {
	value, _ := s.env.Lookup(name)
	return value
}

func (s *settings) reads(name string) bool { return slices.Contains(s.names, name) }

// fault records what is wrong with a variable. The first fault of a variable stays: later ones may follow from it.
func (s *settings) fault(name, detail string) {
	if _, known := s.wrong[name]; !known {
		s.wrong[name] = strings.ReplaceAll(detail, "\n", ": ")
	}
}

// note records what a test of a variable has shown.
func (s *settings) note(name, text string) {
	if s.notes[name] != "" {
		text = s.notes[name] + "; " + text
	}
	s.notes[name] = text
}

// report records an error with the name of a variable, and returns the name. A joined error has several.
func (s *settings) report(err error) (names []string) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			names = append(names, s.report(one)...)
		}
		return names
	}
	name, detail := s.variableIn(err.Error()), err.Error()
	if before, after, found := strings.Cut(detail, name); found && !strings.Contains(before, " ") {
		detail = strings.TrimLeft(after, ": ") // the line says the name already
	}
	s.fault(name, detail)
	return []string{name}
}

// variableIn returns the first variable in a text.
func (s *settings) variableIn(text string) (found string) {
	first := len(text)
	for _, name := range s.names {
		at := strings.Index(text, name)
		if at >= 0 && (at < first || at == first && len(name) > len(found)) {
			first, found = at, name
		}
	}
	return found
}

// tryValues loads each part of the configuration until it finds no more faults: it replaces a faulty variable by its
// default to find the next fault.
func (s *settings) tryValues(ctx context.Context, targets []function) {
	loaders := []func(context.Context, envconfig.Lookuper) error{faults[Config]}
	for _, f := range targets {
		loaders = append(loaders, f.load)
	}
	for _, load := range loaders {
		without := without{s.env, map[string]bool{}}
		for err := load(ctx, without); err != nil; err = load(ctx, without) {
			isNew := true
			for _, name := range s.report(err) {
				isNew = isNew && !without.names[name]
				without.names[name] = true
			}
			if !isNew {
				break
			}
		}
	}
}

// without hides variables.
type without struct {
	envconfig.Lookuper
	names map[string]bool
}

// Lookup implements envconfig.Lookuper.
func (w without) Lookup(name string) (string, bool) {
	if w.names[name] {
		return "", false
	}
	return w.Lookuper.Lookup(name)
}

// good reports whether none of the variables is wrong.
func (s *settings) good(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { _, wrong := s.wrong[name]; return wrong })
}

// wrongNames lists the variables that are wrong.
func (s *settings) wrongNames() []string {
	names := []string{}
	for name := range s.wrong {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
