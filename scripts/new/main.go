// Command new begins a function: its folder, a table with its store, a noun of the CLI, tests, and its entries in the
// lists that name all functions. It prints what is left to do. Run it by `make new NAME=leases KIND=http`.
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

// run renders everything before it writes anything.
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
