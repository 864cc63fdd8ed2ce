package main

import (
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
		edit{"test/contract/examples_done_test.go", after("s.nodeStory, ", "s."+f.Var+"Story, ")},
	)
}

// isFunction reports whether a line of main is a function's declaration.
func isFunction(line string) bool { return strings.HasSuffix(line, ".Function,\n") }
