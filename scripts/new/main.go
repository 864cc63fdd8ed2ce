// Command new begins a function: its folder, its manifests, its entry in functions/openapi.rest.yaml, and its place in the lists
// that follow from these. It prints what is left to do. Run it by `make new NAME=leases KIND=http`.
//
// It writes no table of a test that says what a function may hold or reach: somebody has to decide that.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "new:", err)
		os.Exit(1)
	}
}

// run makes everything before it writes anything.
func run(out io.Writer, args []string) error {
	f, err := newFunction(args)
	if err != nil {
		return err
	}
	changes, err := f.changes()
	if err != nil {
		return err
	}
	var left bytes.Buffer
	if err := f.render(&left, "left.txt"); err != nil {
		return err
	}
	if err := write(changes); err != nil {
		return err
	}
	for _, c := range changes {
		fmt.Fprintln(out, c.verb(), c.path)
	}
	_, err = left.WriteTo(out)
	return err
}
