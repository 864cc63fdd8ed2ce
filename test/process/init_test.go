package process_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// initLine is what Go prints of a package's initialization with GODEBUG=inittrace=1.
var initLine = regexp.MustCompile(`(?m)^init (\S+) @.* (\d+) bytes, \d+ allocs$`)

// TestInitIsSmall: no package of ours takes much memory before main runs, because every process holds it, whichever
// function it serves. A regular expression with a bounded repetition such as {0,254} takes a quarter of a megabyte.
func TestInitIsSmall(t *testing.T) {
	t.Parallel()
	const limit = 128 << 10
	_, out := testkit.Run(t, map[string]string{"GODEBUG": "inittrace=1"}, "no-such-command")
	lines, ours := initLine.FindAllStringSubmatch(out, -1), 0
	for _, line := range lines {
		if !strings.HasPrefix(line[1], "github.com/cloudfn/") {
			continue
		}
		ours++
		if n, err := strconv.Atoi(line[2]); err != nil || n > limit {
			t.Errorf("%s takes %d bytes, want %d at most: %v", line[1], n, limit, err)
		}
	}
	if ours == 0 {
		t.Errorf("no package of ours among %d: %s", len(lines), out)
	}
}
