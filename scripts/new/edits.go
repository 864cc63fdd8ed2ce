package main

import (
	"fmt"
	"slices"
	"strings"
)

// edits register the function where a list must name it.
func (f function) edits() []edit {
	alias := ""
	if f.Package != f.Name {
		alias = f.Package + " "
	}
	list := []edit{
		{"functions/main.go", after("\t\"os\"\n\n",
			"\t"+alias+"\"github.com/cloudfn/cloudfn/functions/"+f.Name+"\"\n")},
		{"functions/main.go", sorted("\t\t"+f.Package+".Function,\n", isFunction)},
	}
	if f.Kind == "event" {
		return append(list, edit{"functions/clock/function.go", after("\t\tTables: map[string]string{\n",
			"\t\t\t\""+f.Field+"_jobs\": \"select (due_at, claimed_until)\",\n\n")})
	}
	return append(list,
		edit{"shared/domain/event.go", after("\t\tinstanceEvent, orderEvent, ", f.Var+"Event, ")},
		edit{"cmd/cloudfn/main.go", after("internal/account\"\n",
			"\t\"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/"+f.Package+"\"\n")},
		edit{"cmd/cloudfn/main.go", after("\t\tcallbacks.Command(a),\n", "\t\t"+f.Package+".Command(a),\n")},
		edit{"cmd/cloudfn/README.md", before("| `status`, `version`",
			"| `"+f.Name+" list`, `show`, `create`, `delete` | the project's "+f.Words+" |\n")},
		edit{"functions/console/static/app.js", before("  ['requests', 'Requests'],",
			"  ['"+f.Name+"', '"+f.Title+"'],\n")},
		edit{"shared/postgres/kind.go", sorted("\t{table: \""+f.Field+"\"},\n", isKind)},
	)
}

// isKind reports whether a line begins the entry of a kind.
func isKind(line string) bool { return strings.HasPrefix(line, "\t{table: ") }

// isFunction reports whether a line of main is a function's declaration.
func isFunction(line string) bool { return strings.HasSuffix(line, ".Function,\n") }

// edit is a change of a file that exists.
type edit struct {
	path  string
	apply func(text string) (string, error)
}

// after inserts a text behind another that occurs once.
func after(place, text string) func(string) (string, error) { return replace(place, place+text) }

// before inserts a text before another that occurs once.
func before(place, text string) func(string) (string, error) { return replace(place, text+place) }

func replace(place, text string) func(string) (string, error) {
	return func(all string) (string, error) {
		if strings.Count(all, place) != 1 {
			return "", fmt.Errorf("%q must occur once", place)
		}
		return strings.Replace(all, place, text, 1), nil
	}
}

// sorted inserts a line among others: before the first of them that comes after it, else behind the last.
func sorted(line string, among func(string) bool) func(string) (string, error) {
	return func(all string) (string, error) {
		lines := strings.SplitAfter(all, "\n")
		place := -1
		for i, other := range lines {
			if !among(other) {
				continue
			}
			if other > line {
				place = i
				break
			}
			place = i + 1
		}
		if place < 0 {
			return "", fmt.Errorf("no line is like %q", strings.TrimSpace(line))
		}
		return strings.Join(slices.Insert(lines, place, line), ""), nil
	}
}
