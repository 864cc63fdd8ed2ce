package docs

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "regenerate the index of docs/adr")

// walked are the pages whose commands a test runs.
var walked = []string{
	"tour.md", "receive-callbacks.md", "delegate.md", "request-connection.md", "application-credential.md",
	"devstack.md", "build.md", "reserve-hosts.md", "give-servers-an-end.md", "maintain-host.md", "declare-servers.md",
	"reach-a-server.md", "servers-by-http.md", "../README.md",
}

// texts are the Markdown files of the project, wherever they are.
func texts(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{
		"*.md", "adr/*.md", "../*.md", "../functions/*/*.md", "../cmd/*/*.md", "../knative/*.md", "../test/*/*.md",
	} {
		names, err := filepath.Glob(filepath.FromSlash(pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: found %v, %v", pattern, names, err)
		}
		found = append(found, names...)
	}
	return found
}

// TestEveryCommandIsRunOrSaysWhyNot logs the commands that no test runs.
func TestEveryCommandIsRunOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		for _, b := range blocks(t, page) {
			switch {
			case b.language != "sh" && b.language != "console":
			case b.notRun != "":
				t.Logf("%s:%d is not run: %s", page, b.line, b.notRun)
			case !slices.Contains(walked, page):
				t.Errorf("%s:%d is not run, and does not say why", page, b.line)
			}
		}
	}
}

// TestLinksLeadSomewhere checks every relative link and its anchor, and that docs/README.md lists every page.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	index := read(t, "README.md")
	for _, page := range pages(t) {
		if name := filepath.Base(page); name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("README.md does not list %s", page)
		}
	}
	for _, page := range texts(t) {
		for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			target := page
			if found[1] != "" {
				target = filepath.Join(filepath.Dir(page), found[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			if anchor := strings.TrimPrefix(found[2], "#"); anchor != "" &&
				!slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s: %s has no heading #%s", page, target, anchor)
			}
		}
	}
}

// TestPagesUseTheURL: who runs cloudfn at another address types the same lines. Two pages start a daemon of their own.
func TestPagesUseTheURL(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		if page == "devstack.md" || page == "systemd.md" {
			continue
		}
		for _, b := range blocks(t, page) {
			for _, s := range b.steps() {
				if strings.Contains(s.command, pageURL+"/v1/") {
					t.Errorf("%s:%d: write $CLOUDFN_URL: %s", page, b.line, s.command)
				}
			}
		}
	}
}

// anchors are the names that GitHub gives to the headings of a page.
func anchors(t *testing.T, page string) []string {
	t.Helper()
	var found []string
	for line := range strings.Lines(read(t, page)) {
		if hashes, title, isHeading := strings.Cut(line, " "); isHeading && strings.Trim(hashes, "#") == "" {
			title = regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			found = append(found, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return found
}

// generated is a part of a page that `make generate` makes, such as a table with a row for each function.
var generated = regexp.MustCompile("(?s)[#-] \\w+: made by `make generate`.*?end of \\w+")

// TestPagesAreShort keeps the README at one or two screens, and every page short enough to be read. A new function or
// event adds to what is generated, which does not count.
func TestPagesAreShort(t *testing.T) {
	t.Parallel()
	for _, page := range texts(t) {
		most := 300
		switch {
		case page == filepath.Join("..", "README.md"):
			most = 150
		case strings.HasPrefix(page, "adr") && filepath.Base(page) != "README.md":
			most = 40
		case page == filepath.Join("..", "CHANGELOG.md"):
			continue // it only grows
		}
		if n := strings.Count(generated.ReplaceAllString(read(t, page), ""), "\n"); n > most {
			t.Errorf("%s has %d lines, %d are allowed", page, n, most)
		}
	}
}

// TestIndexOfDecisions compares docs/adr/README.md with the decisions beside it.
func TestIndexOfDecisions(t *testing.T) {
	t.Parallel()
	const index = "adr/README.md"
	names, err := filepath.Glob("adr/[0-9]*.md")
	if err != nil || len(names) == 0 {
		t.Fatalf("found %v, %v", names, err)
	}
	text := read(t, index)
	head, _, found := strings.Cut(text, "|---|---|\n")
	if !found {
		t.Fatalf("%s has no table", index)
	}
	var rows strings.Builder
	for _, name := range names {
		title, _, _ := strings.Cut(read(t, name), "\n")
		number, title, isTitle := strings.Cut(strings.TrimPrefix(title, "# "), ": ")
		if !isTitle || !strings.HasPrefix(filepath.Base(name), number+"-") {
			t.Errorf("%s must begin with a heading of the form # NNNN: title", name)
		}
		fmt.Fprintf(&rows, "| [%s](%s) | %s |\n", number, filepath.Base(name), title)
	}
	want := head + "|---|---|\n" + rows.String()
	if text == want {
		return
	}
	if !*update {
		t.Fatalf("%s is stale: run go test ./docs -run TestIndexOfDecisions -update", index)
	}
	if err := os.WriteFile(index, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPagesSayWhereTheyRun: a page whose commands take files of the checkout says so, and one that goes to a temporary
// folder comes back.
func TestPagesSayWhereTheyRun(t *testing.T) {
	t.Parallel()
	ofCheckout := regexp.MustCompile(`(?m)(^|[ $(])(make [a-z]|scripts/|docs/|\.local/|knative/|\./functions)`)
	for _, page := range pages(t) {
		var text strings.Builder
		for _, b := range blocks(t, page) {
			if b.language == "sh" || b.language == "console" {
				text.WriteString(b.text)
			}
		}
		commands := text.String()
		says := regexp.MustCompile(`checkout|git clone`).MatchString(read(t, page))
		isOfTour := strings.Contains(read(t, page), "(tour.md") && !strings.Contains(commands, "docs/")
		if ofCheckout.MatchString(commands) && !says && !isOfTour {
			t.Errorf("%s does not say that its commands run in a checkout", page)
		}
		if strings.Contains(commands, `cd "$(mktemp -d)"`) && !strings.Contains(commands, "$ cd -") {
			t.Errorf("%s leaves the reader in a temporary folder", page)
		}
	}
	page := read(t, "give-servers-an-end.md")
	setting := strings.Index(page, "\nDEFAULT_LEASE=P1M make run\n")
	if launch := strings.Index(page, "$ cloudfn launch forgotten "); setting < 0 || setting > launch {
		t.Error("give-servers-an-end.md does not set DEFAULT_LEASE before it needs it")
	}
}
