//go:build bench

package bench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// result is one line of the table.
type result struct {
	number string // of the measurement; the table is in the order of these
	name   string
	ours   string
	peer   string  // what it is held against: somebody else's way, or a limit
	ratio  float64 // ours : peer
	target target
}

// line is the number without its letter.
func (r result) line() (n int) {
	_, _ = fmt.Sscanf(r.number, "%d", &n)
	return n
}

// target is what the ratio should be. It is judged, and nothing fails by it.
type target struct {
	bound   float64
	atLeast bool
}

func atLeast(bound float64) target { return target{bound: bound, atLeast: true} }
func atMost(bound float64) target  { return target{bound: bound} }

// shown is for a line that has no target.
var shown = target{}

func (t target) String() string {
	switch {
	case t == shown:
		return "-"
	case t.atLeast:
		return ">= " + times(t.bound)
	}
	return "<= " + times(t.bound)
}

func (t target) verdict(ratio float64) string {
	switch {
	case t == shown:
		return "-"
	case t.atLeast && ratio >= t.bound, !t.atLeast && ratio <= t.bound:
		return "ok"
	}
	return "MISSED"
}

// times writes a ratio: 4.6x, or 1/17 when it is that small.
func times(ratio float64) string {
	switch {
	case ratio <= 0:
		return "-"
	case ratio < 0.01:
		return fmt.Sprintf("1/%.0f", 1/ratio)
	case ratio < 0.4:
		return fmt.Sprintf("1/%.1f", 1/ratio)
	}
	return fmt.Sprintf("%.2fx", ratio)
}

var results []result

// report adds a line to the table.
func report(r result) { results = append(results, r) }

func printResults(w io.Writer) {
	slices.SortStableFunc(results, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.line(), b.line()), cmp.Compare(a.number, b.number))
	})
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "\twhat\tours\tpeer or limit\tours:peer\ttarget\tverdict")
	for _, r := range results {
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.number, r.name, r.ours, r.peer, times(r.ratio), r.target,
			r.target.verdict(r.ratio))
	}
	_ = tab.Flush()
	fmt.Fprintln(w, footnote)
}

const footnote = `
5: the fake Nova answers at once, so this is our work and the peer's alone. What Nova works for each of the pages
comes on top: 6, and the table below.`
