package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// walked are the pages whose commands a test runs.
var walked = []string{"tour.md", "receive-callbacks.md", "delegate.md", "devstack.md", "../README.md"}

// TestEveryCommandIsRunOrSaysWhyNot lists those that are not.
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

// TestLinksLeadSomewhere within the checkout, and every page is in the index.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	index := read(t, "README.md")
	for _, page := range pages(t) {
		if name := filepath.Base(page); name != "README.md" && !strings.Contains(index, "]("+name+")") {
			t.Errorf("README.md does not name %s", page)
		}
		for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), found[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
}
