// Command declarations writes what follows from the functions' declarations: manifests, grants and tables of the
// documentation. Run it by `make generate`. With -check it writes nothing, and fails when a file is stale.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/cloudfn/cloudfn/shared/run"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail when a file is stale")
	flag.Parse()
	if err := generate(*check); err != nil {
		fmt.Fprintln(os.Stderr, "declarations:", err)
		os.Exit(1)
	}
}

// files are texts by path.
type files map[string][]byte

func generate(check bool) error {
	d, err := describe()
	if err != nil {
		return err
	}
	made := files{}
	for _, add := range []func(files, run.Description) error{
		manifests, grants, tables, eventTable, onKnative, architecture, configuration, openapi, functionList,
	} {
		if err := add(made, d); err != nil {
			return err
		}
	}
	stale, err := staleFiles(made)
	if err != nil || len(stale) == 0 {
		return err
	}
	if check {
		return fmt.Errorf("stale: %v; run `make generate`", stale)
	}
	for _, path := range stale {
		if text, isCurrent := made[path]; !isCurrent {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, text, 0o644) //nolint:gosec // sources, for everybody
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// describe runs the binary, because a package main cannot be imported.
func describe() (d run.Description, err error) {
	cmd := exec.Command("go", "run", "./functions", "describe") //nolint:noctx // a tool of developers
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return d, fmt.Errorf("functions describe: %w", err)
	}
	return d, json.Unmarshal(out, &d)
}

// byHand are the manifests beside the generated ones.
var byHand = []string{"knative/services/common.yaml", "knative/services/gateway.yaml"}

// staleFiles lists the files that differ, and the manifests of functions that no longer exist.
func staleFiles(made files) (stale []string, err error) {
	for path, text := range made {
		old, err := os.ReadFile(path) //nolint:gosec // of this checkout
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if !bytes.Equal(old, text) {
			stale = append(stale, path)
		}
	}
	for _, pattern := range []string{"knative/services/*.yaml", "knative/sources/*.yaml", "functions/*/func.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			if _, isCurrent := made[path]; !isCurrent && !slices.Contains(byHand, path) {
				stale = append(stale, path)
			}
		}
	}
	slices.Sort(stale)
	return stale, nil
}
