package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cloudfn/cloudfn/shared/run"
)

// tables are those of functions in README.md, and of their scale in knative/README.md.
func tables(made files, d run.Description) error {
	if err := replace(made, "README.md", "functions", functionTable(d)); err != nil {
		return err
	}
	return replace(made, "knative/README.md", "scale", scaleTable(d))
}

func functionTable(d run.Description) string {
	var out strings.Builder
	out.WriteString("| function | serves | what it does |\n|---|---|---|\n")
	for _, kind := range []string{"http", "event"} {
		for _, f := range d.Functions {
			if f.Kind == kind {
				fmt.Fprintf(&out, "| [%s](functions/%s/README.md) | %s | %s |\n", f.Name, f.Name, serves(f),
					strings.TrimSuffix(f.Summary, "."))
			}
		}
	}
	return out.String()
}

// serves is where an HTTP function's paths begin, or when an event function is woken.
func serves(f run.Declaration) string {
	if f.Kind == "event" {
		var when []string
		if every := map[run.Schedule]string{run.Minutely: "minute", run.Hourly: "hour"}[f.Schedule]; every != "" {
			when = append(when, "every "+every)
		}
		if len(f.Due) > 0 {
			when = append(when, "when something is due")
		}
		return "a CloudEvent, " + strings.Join(when, " and ")
	}
	var begin []string
	for _, prefix := range f.Prefixes() {
		begin = append(begin, "`"+prefix+"`")
	}
	return strings.Join(begin, ", ")
}

func scaleTable(d run.Description) string {
	var out strings.Builder
	out.WriteString("| Service | concurrency (target) | max-scale | connections |\n|---|---|---|---|\n")
	total := 0
	for _, f := range d.Functions {
		concurrency := strconv.Itoa(f.Scale.Concurrency)
		if f.Scale.Target > 0 {
			concurrency += fmt.Sprintf(" (%d)", f.Scale.Target)
		}
		connections := f.Scale.MaxPods * f.Connections()
		total += connections
		fmt.Fprintf(&out, "| %s | %s | %d | %d |\n", f.Name, concurrency, f.Scale.MaxPods, connections)
	}
	fmt.Fprintf(&out, "| together | | | %d |\n", total)
	return out.String()
}

// replace puts a text between two markers of a file.
func replace(made files, path, name, text string) error {
	old, err := os.ReadFile(path) //nolint:gosec // of this checkout
	if err != nil {
		return err
	}
	if earlier, ok := made[path]; ok {
		old = earlier
	}
	begin, end := []byte("<!-- "+name+": made by `make generate` -->\n"), []byte("<!-- end of "+name+" -->")
	before, rest, found := bytes.Cut(old, begin)
	_, after, ended := bytes.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s: markers %q and %q are missing", path, bytes.TrimSpace(begin), end)
	}
	made[path] = slices.Concat(before, begin, []byte("\n"+text+"\n"), end, after)
	return nil
}
