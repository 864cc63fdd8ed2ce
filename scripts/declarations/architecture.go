package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/run"
)

// aggregate is what the files shared/postgres/NAME*.go store.
type aggregate struct {
	tables, events []string
}

var (
	insertInto   = regexp.MustCompile(`insert into ([a-z_]+)`)
	eventUse     = regexp.MustCompile(`domain\.(\w+Event)\b`)
	eventType    = regexp.MustCompile(`(\w+Event)\s+=\s+"cloudfn\.(([a-z]+)[a-z_.]*)\.v1"`)
	engineImport = regexp.MustCompile(`"github.com/cloudfn/cloudfn/(shared/(?:actions|leases|managed|nodes|orders))"`)
)

// many functions write what all of them need, such as rate limits.
const many = 6

// architecture is the map in docs/architecture.md: what is stored where, by whom, with which events; who wakes whom.
func architecture(made files, d run.Description) error {
	all, err := aggregates()
	if err != nil {
		return err
	}
	var out strings.Builder
	out.WriteString("| NOUN | tables | events | stored by | changed by |\n|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		a := all[name]
		stores, changes := a.functions(name, d)
		isNoun := len(stores) > 0 && len(stores) < many
		if len(a.tables) > 0 && (len(a.events) > 0 || isNoun) {
			fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", name, list(a.tables), list(a.events), list(stores),
				list(changes))
		}
	}
	out.WriteString("\n| is woken | by the clock, and by | decides in |\n|---|---|---|\n")
	for _, f := range d.Functions {
		if f.Kind != "event" || f.Name == "clock" {
			continue
		}
		engines, err := engines(f.Name)
		if err != nil {
			return err
		}
		var by []string
		for _, other := range d.Functions {
			if slices.Contains(other.Reach.Wakes, f.Name) {
				by = append(by, other.Name)
			}
		}
		fmt.Fprintf(&out, "| %s | %s | %s |\n", f.Name, list(by), list(append(engines, "functions/"+f.Name)))
	}
	return replace(made, "docs/architecture.md", "map", out.String())
}

func list(names []string) string { return strings.Join(names, ", ") }

// aggregates reads the statements and the names of events in shared/postgres. The type of an event names its aggregate,
// too.
func aggregates() (map[string]aggregate, error) {
	types, found := map[string]string{}, map[string]aggregate{}
	err := each("shared/domain/*.go", func(_, text string) {
		for _, m := range eventType.FindAllStringSubmatch(text, -1) {
			types[m[1]] = m[2]
			found[m[3]] = found[m[3]].with(nil, m[2])
		}
	})
	if err != nil {
		return nil, err
	}
	return found, each("shared/postgres/*.go", func(path, text string) {
		name, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(path), ".go"), "_")
		for _, m := range insertInto.FindAllStringSubmatch(text, -1) {
			if m[1] != "events" {
				found[name] = found[name].with([]string{m[1]})
			}
		}
		for _, m := range eventUse.FindAllStringSubmatch(text, -1) {
			if types[m[1]] != "" {
				found[name] = found[name].with(nil, types[m[1]])
			}
		}
	})
}

func (a aggregate) with(tables []string, events ...string) aggregate {
	a.tables, a.events = append(a.tables, tables...), append(a.events, events...)
	slices.Sort(a.tables)
	slices.Sort(a.events)
	a.tables, a.events = slices.Compact(a.tables), slices.Compact(a.events)
	return a
}

// functions are those that serve HTTP and may insert into a table that is named for the aggregate, and those that are
// woken and may write to it. Where no table is, all of them count.
func (a aggregate) functions(name string, d run.Description) (stores, changes []string) {
	isOwn := func(table string) bool { return strings.HasPrefix(table, name) }
	tables := slices.DeleteFunc(slices.Clone(a.tables), func(t string) bool { return !isOwn(t) })
	if len(tables) == 0 {
		tables = a.tables
	}
	for _, f := range d.Functions {
		may := func(right string) bool {
			return slices.ContainsFunc(tables, func(t string) bool {
				return strings.Contains(f.Reach.Tables[t], right)
			})
		}
		switch {
		case f.Kind == "http" && may("insert"):
			stores = append(stores, f.Name)
		case f.Kind == "event" && (may("insert") || may("update")):
			changes = append(changes, f.Name)
		}
	}
	return stores, changes
}

// engines are the packages in which a function has decided what is due.
func engines(function string) (names []string, err error) {
	err = each("functions/"+function+"/*.go", func(_, text string) {
		for _, m := range engineImport.FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// each reads the Go files of a pattern, without tests.
func each(pattern string, do func(path, text string)) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path) //nolint:gosec // of this checkout
		if err != nil {
			return err
		}
		do(path, string(text))
	}
	return nil
}
