package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/cloudfn/cloudfn/shared/run"
)

// tables is that of functions in README.md.
func tables(made files, d run.Description) error {
	return replace(made, "README.md", "functions", functionTable(d))
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

// replace puts a text between two markers of a page.
func replace(made files, path, name, text string) error {
	return replaceBetween(made, path, "<!-- "+name+": made by `make generate` -->\n", "<!-- end of "+name+" -->",
		"\n"+text+"\n")
}

func replaceBetween(made files, path, begin, end, text string) error {
	old, err := os.ReadFile(path) //nolint:gosec // of this checkout
	if err != nil {
		return err
	}
	if earlier, ok := made[path]; ok {
		old = earlier
	}
	before, rest, found := strings.Cut(string(old), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		return fmt.Errorf("%s: markers %q and %q are missing", path, strings.TrimSpace(begin), end)
	}
	made[path] = []byte(before + begin + text + end + after)
	return nil
}
