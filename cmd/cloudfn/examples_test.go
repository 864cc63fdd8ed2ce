package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
)

// TestExamplesNameANetwork: the sandbox of `make run` has several networks, as most clouds have.
func TestExamplesNameANetwork(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(text)))
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		lines = append(lines, strings.Split(c.Example, "\n")...)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	a := &cli.App{Now: time.Now, Env: os.LookupEnv}
	walk(a.Root("cloudfn", commands))
	n := 0
	for _, line := range lines {
		if _, launch, ok := strings.Cut(line, "cloudfn launch "); ok && strings.Contains(launch, "--image ") {
			if n++; !strings.Contains(launch, "--network ") {
				t.Errorf("no --network: %s", line)
			}
		}
	}
	if n < 6 {
		t.Errorf("there are only %d launches", n)
	}
}

// TestPageOfOpenStackClient: each command and flag of ours that the page names exists, and the page names each group.
func TestPageOfOpenStackClient(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/openstackclient.md")
	if err != nil {
		t.Fatal(err)
	}
	a := &cli.App{Now: time.Now, Env: os.LookupEnv}
	root := a.Root("cloudfn", commands)
	for _, code := range regexp.MustCompile("`cloudfn ([a-z][^`]*)`").FindAllStringSubmatch(string(text), -1) {
		words := strings.Fields(code[1])
		command, rest, err := root.Find(words)
		if err != nil || command == root {
			t.Errorf("there is no command %q: %v", code[1], err)
			continue
		}
		for _, word := range rest {
			name, isFlag := strings.CutPrefix(word, "--")
			if isFlag && command.Flags().Lookup(name) == nil || !isFlag && !slices.Contains(command.ValidArgs, word) {
				t.Errorf("%q: %s has no %s", code[1], command.CommandPath(), word)
			}
		}
	}
	for _, c := range root.Commands() {
		_, back, _ := strings.Cut(string(text), "## From cloudfn")
		if !c.Hidden && !strings.Contains(back, "`cloudfn "+c.Name()+"`") {
			t.Errorf("the page does not lead back from %s", c.Name())
		}
	}
}
