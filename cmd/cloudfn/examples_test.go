package main

import (
	"os"
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
