package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
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
	serviceList = "knative/services/kustomization.yaml"
	sourceList  = "knative/sources/kustomization.yaml"
	processTest = "test/process/main_test.go"
	exampleTest = "test/contract/examples_done_test.go"
	podTest     = "test/e2e/pod_test.go"
)

// both are what is changed whichever kind it is of.
func (f function) both() []edit {
	kind := func(line string) bool { return isResource(line) && isWoken(line) == (f.Kind == "event") }
	return []edit{
		{"functions/main.go", sorted(importLine+f.Name+"\"\n", isImport)},
		{serviceList, sorted("  - "+f.Name+".yaml\n", kind)},
		{processTest, listed(`it must be one of ([a-z0-9, -]+)"`, ", ", f.Name)},
		{apiFile, f.fragment("tag.yaml", map[string]string{"http": "  - name: events\n", "event": "  - name: process\n"}[f.Kind])},
		{apiFile, f.fragment("path.yaml", map[string]string{"http": "  /:\n", "event": "webhooks:\n"}[f.Kind])},
	}
}

// serving are what is changed besides for one that serves HTTP.
func (f function) serving() []edit {
	return []edit{
		{apiFile, f.schemas},
		{processTest, after("paths := map[string]string{\n", "\t\t\""+f.Name+"\": \"/v1/"+f.Name+"\",\n")},
		{exampleTest, after("for _, operation := range []string{", "\""+f.Operation+"\", ")},
		{exampleTest, after("var never = map[string]string{\n", "\t\""+f.Operation+" 500\": onlyByMistake,\n")},
	}
}

// woken are what is changed besides for one that events wake.
func (f function) woken() []edit {
	return []edit{
		{sourceList, sorted("  - "+f.Name+".yaml\n", isResource)},
		{podTest, listed(`var eventFunctions = \[\]string\{"([^}]*)"\}`, `", "`, f.Name)},
		{exampleTest, after("for _, event := range []string{", "\""+f.Operation+"\", ")},
		{"cmd/cloudfn/testdata/not-commands.yaml", atEnd(f.Operation + ": an event function\n")},
	}
}

// isImport says whether a line imports a function.
func isImport(line string) bool { return strings.HasPrefix(line, importLine) }

const importLine = "\t_ \"github.com/cloudfn/cloudfn/functions/"

// isResource says whether a line of a kustomization names a function's file. The gateway comes first, and is none.
func isResource(line string) bool {
	return strings.HasPrefix(line, "  - ") && strings.HasSuffix(line, ".yaml\n") && line != "  - gateway.yaml\n"
}

// isWoken says whether the line's function is woken by a PingSource.
func isWoken(line string) bool {
	_, err := os.Stat(function{Name: strings.TrimSuffix(strings.TrimPrefix(line, "  - "), ".yaml\n")}.Source())
	return err == nil
}

// listed puts a word into its place in a list within one line, which the form finds.
func listed(form, between, word string) func(string) (string, error) {
	return func(all string) (string, error) {
		at := regexp.MustCompile(form).FindStringSubmatchIndex(all)
		if at == nil {
			return "", fmt.Errorf("there is no list as in %s", form)
		}
		words := append(strings.Split(all[at[2]:at[3]], between), word)
		slices.Sort(words)
		return all[:at[2]] + strings.Join(words, between) + all[at[3]:], nil
	}
}

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
