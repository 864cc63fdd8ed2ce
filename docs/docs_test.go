package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testkit.RemoveBinary()
	os.Exit(code)
}

// read returns the text of a file of this folder.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// tool finds a program that a test needs. It fails with the name of the Debian package that contains it.
func tool(t *testing.T, name, debian string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil && os.Getenv("TEST_CLOUD") == "none" {
		t.Skipf("left out: %s is not installed, and only root can install it", name)
	}
	if err != nil {
		t.Fatalf("%s is not installed: apt-get install %s", name, debian)
	}
	return path
}

// pages are the pages of this folder, and the README of the project.
func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*.md")
	if err != nil || len(found) < 5 {
		t.Fatalf("found %v, %v", found, err)
	}
	return append(found, filepath.Join("..", "README.md"))
}

// block is a fenced block of a page.
type block struct {
	language string
	text     string
	line     int
	notRun   string // the page's reason for not running it, if any

	background bool // it keeps running in its own terminal
}

const notRun = "<!-- not run: "

// blocks are the fenced blocks of a page, in their order.
func blocks(t *testing.T, page string) []block {
	t.Helper()
	var found []block
	open := false
	before := "" // the last non-empty line before the block
	for n, line := range strings.Split(read(t, page), "\n") {
		switch fence, isFence := strings.CutPrefix(strings.TrimLeft(line, " "), "```"); {
		case isFence && !open:
			reason := ""
			if after, marked := strings.CutPrefix(strings.TrimSpace(before), notRun); marked {
				reason = strings.TrimSuffix(after, " -->")
			}
			found = append(found, block{
				language: fence, line: n + 1, notRun: reason, background: strings.TrimSpace(before) == background,
			})
			open = true
		case isFence:
			open, before = false, ""
		case open:
			found[len(found)-1].text += line + "\n"
		case strings.TrimSpace(line) != "":
			before = line
		}
	}
	if open {
		t.Fatalf("%s: the block of line %d has no end", page, found[len(found)-1].line)
	}
	return found
}
