package main

import (
	"errors"
	"regexp"
	"strings"
)

// edits put the function in its place wherever all functions are named.
func (f function) edits() []edit {
	if f.Kind == "http" {
		return append(f.both(), f.serving()...)
	}
	return append(f.both(), f.woken()...)
}

const (
	mainFile    = "functions/main.go"
	exampleTest = "test/contract/examples_done_test.go"
)

// both are what is changed whichever kind it is of.
func (f function) both() []edit {
	name := ""
	if f.Package != f.Name {
		name = f.Package + " "
	}
	return []edit{
		{mainFile, after("\t\"os\"\n\n", "\t"+name+"\"github.com/cloudfn/cloudfn/functions/"+f.Name+"\"\n")},
		{mainFile, sorted("\t\t"+f.Package+".Function,\n", isFunction)},
		{apiFile, f.fragment("tag.yaml", map[string]string{"http": "  - name: events\n", "event": "  - name: process\n"}[f.Kind])},
		{apiFile, f.fragment("path.yaml", map[string]string{"http": "  /:\n", "event": "webhooks:\n"}[f.Kind])},
	}
}

// serving are what is changed besides for one that serves HTTP.
func (f function) serving() []edit {
	return []edit{
		{apiFile, f.schemas},
		{exampleTest, after("for _, operation := range []string{", "\""+f.Operation+"\", ")},
		{exampleTest, after("var never = map[string]string{\n", "\t\""+f.Operation+" 500\": onlyByMistake,\n")},
	}
}

// woken are what is changed besides for one that events wake.
func (f function) woken() []edit {
	return []edit{
		{exampleTest, after("for _, event := range []string{", "\""+f.Operation+"\", ")},
		{"cmd/cloudfn/testdata/not-commands.yaml", atEnd(f.Operation + ": an event function\n")},
	}
}

// isFunction says whether a line of main names a function's declaration.
func isFunction(line string) bool { return strings.HasSuffix(line, ".Function,\n") }

// fragment puts a part of the API's description before a line of it.
func (f function) fragment(name, line string) func(string) (string, error) {
	return func(all string) (string, error) {
		text, err := f.text(name)
		if err != nil {
			return "", err
		}
		return before(line, text)(all)
	}
}

// afterSchemas is a line of the file that belongs to another part than the schemas, which are the last.
var afterSchemas = regexp.MustCompile(`(?m)^ {0,3}[^ \n]`)

// schemas puts those of the function behind all others.
func (f function) schemas(all string) (string, error) {
	_, behind, found := strings.Cut(all, "\n  schemas:\n")
	if !found || afterSchemas.MatchString(behind) {
		return "", errors.New("it does not end with its schemas")
	}
	text, err := f.text("schemas.yaml")
	return all + text, err
}
