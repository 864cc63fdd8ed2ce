// Command vulncheck looks for known vulnerabilities in what the binaries call, by govulncheck, in
// modules and in the standard library of the Go that runs it. make runs it with the Go that releases are built with.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/version"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

const (
	govulncheck = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"
	// The database is a Go module, so that it comes from the proxy of all other modules. It is pinned: a commit that
	// passes today passes tomorrow.
	database = "golang.org/x/vulndb"
	pinned   = "v0.0.0-20261105234957-e22db6528018"
)

func main() {
	latest := flag.Bool("latest", false, "use the newest database")
	flag.Parse()
	if err := run(*latest, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		os.Exit(1)
	}
}

func run(latest bool, out io.Writer) error {
	of := pinned
	if latest {
		of = "latest"
	}
	text, err := output("go", "mod", "download", "-json", database+"@"+of)
	if err != nil {
		return fmt.Errorf("the database is not available: %w", err)
	}
	var module struct{ Version, Dir string }
	if err := json.Unmarshal(text, &module); err != nil {
		return err
	}
	text, err = output("go", "run", govulncheck, "-format", "json",
		"-db", "file://"+filepath.Join(module.Dir, "data", "osv"), "./cmd/...", "./functions/...")
	if err != nil {
		return err
	}
	found, err := read(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return found.report(out, module.Version, runtime.Version())
}

func output(name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(context.Background(), name, args...) //nolint:gosec // only main calls it
	cmd.Stderr = os.Stderr
	return cmd.Output()
}

// vulnerability is one that the binaries reach.
type vulnerability struct{ id, module, version, fixed, caller string }

type vulnerabilities []vulnerability

// read reads what govulncheck writes as JSON. A finding whose trace begins at a function is of code that is called.
func read(r io.Reader) (found vulnerabilities, err error) {
	for decoder := json.NewDecoder(r); ; {
		var message struct {
			Finding *struct {
				OSV   string
				Fixed string `json:"fixed_version"`
				Trace []struct{ Module, Version, Package, Function string }
			}
		}
		switch err := decoder.Decode(&message); {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, fmt.Errorf("govulncheck's output: %w", err)
		}
		f := message.Finding
		isSame := func(v vulnerability) bool { return v.id == f.OSV && v.module == f.Trace[0].Module }
		if f == nil || len(f.Trace) == 0 || f.Trace[0].Function == "" || slices.ContainsFunc(found, isSame) {
			continue
		}
		last := f.Trace[len(f.Trace)-1]
		found = append(found, vulnerability{
			f.OSV, f.Trace[0].Module, f.Trace[0].Version, f.Fixed, last.Package + "." + last.Function,
		})
	}
}

// report writes what was found. Any vulnerability is an error.
func (found vulnerabilities) report(out io.Writer, databaseVersion, goVersion string) error {
	var fixed string
	var ids []string
	for _, v := range found {
		if v.module != "stdlib" {
			fmt.Fprintf(out, "%s: %s@%s, fixed in %s, called by %s\n", v.id, v.module, v.version, v.fixed, v.caller)
			continue
		}
		ids = append(ids, v.id)
		if needed := "go" + strings.TrimPrefix(v.fixed, "v"); version.Compare(needed, fixed) > 0 {
			fixed = needed
		}
	}
	if len(ids) > 0 {
		fmt.Fprintf(out, "the standard library of %s has %d vulnerabilities that the binaries reach (%s): "+
			"set the toolchain of go.mod to %s or later\n", goVersion, len(ids), strings.Join(ids, ", "), fixed)
	}
	if len(found) > 0 {
		return fmt.Errorf("%d vulnerabilities, by the database %s", len(found), databaseVersion)
	}
	fmt.Fprintf(out, "the modules and %s have no known vulnerability that the binaries reach (database %s)\n",
		goVersion, databaseVersion)
	return nil
}
