package main

import (
	"cmp"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// TestTimesOfHelp: the times and durations that the help of a flag shows are ones that the flag takes.
func TestTimesOfHelp(t *testing.T) {
	t.Parallel()
	times := regexp.MustCompile(`(?:\bin )?\b(?:(?:\d+[mhdw])+|P\d+[DM]|\d{4}-\d\d-\d\dT[\d:]+Z)`)
	n := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.Flags().VisitAll(func(flag *pflag.Flag) {
			for _, text := range times.FindAllString(flag.Usage, -1) {
				n++
				if err := flag.Value.Set(text); err != nil {
					t.Errorf("%s --%s %q: %v", c.CommandPath(), flag.Name, text, err)
				}
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	a := &cli.App{Now: time.Now, Env: os.LookupEnv}
	walk(a.Root("cloudfn", commands))
	if n < 30 {
		t.Errorf("there are only %d times", n)
	}
}

// TestReadmeHasCommands: the table of commands names each.
func TestReadmeHasCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	table, _, _ := strings.Cut(string(text), "\n## Examples")
	rows := func(noun string) string { // those with a command that begins with it
		var found strings.Builder
		for row := range strings.Lines(table) {
			if strings.HasPrefix(row, "| `") && strings.Contains(row, "`"+noun) {
				found.WriteString(row)
			}
		}
		return found.String()
	}
	a := &cli.App{Now: time.Now, Env: os.LookupEnv}
	var walk func(c *cobra.Command, noun string)
	walk = func(c *cobra.Command, noun string) {
		for _, sub := range c.Commands() {
			word := regexp.MustCompile("[`|]" + sub.Name() + `\b| ` + sub.Name() + "\\b[^`|]*`")
			if !sub.HasSubCommands() && !sub.Hidden && !word.MatchString(rows(noun)) {
				t.Errorf("README.md has no %s", sub.CommandPath())
			}
			walk(sub, cmp.Or(noun, sub.Name()))
		}
	}
	walk(a.Root("cloudfn", commands), "")
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
