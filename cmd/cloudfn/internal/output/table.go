package output

import (
	"bufio"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// gap is what is between two columns.
const gap = "  "

type table struct {
	head  []string
	rows  [][]string
	state []bool // which columns are colored
	color bool
}

// write prints the head and the rows, each column as wide as its widest cell.
func (t table) write(out io.Writer) error {
	for _, row := range t.rows {
		for i := range row {
			if row[i] = Clean(row[i]); row[i] == "" {
				row[i] = "-"
			}
		}
	}
	widths := t.widths(append([][]string{t.head}, t.rows...))
	w := bufio.NewWriter(out)
	for n, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-cells(cell))
			switch {
			case n == 0:
				cell = style(t.color, bold, cell)
			case t.state[i]:
				cell = Paint(t.color, cell)
			}
			_, _ = w.WriteString(cell)
			if i < len(row)-1 {
				_, _ = w.WriteString(padding + gap)
			}
		}
		_ = w.WriteByte('\n')
	}
	return w.Flush()
}

// lines prints rows of a label and a text that is ready.
func (t table) lines(out io.Writer) error {
	widths := t.widths(t.rows)
	w := bufio.NewWriter(out)
	for _, row := range t.rows {
		_, _ = w.WriteString(style(t.color, bold, row[0]) + strings.Repeat(" ", widths[0]-cells(row[0])) + gap + row[1] + "\n")
	}
	return w.Flush()
}

func (t table) widths(rows [][]string) []int {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], cells(cell))
		}
	}
	return widths
}

// cells is how wide a terminal shows a text: 2 for a CJK character, 0 for an accent that is combined.
func cells(text string) int { return uniseg.StringWidth(text) }

// Clean is a text that cannot command a terminal: names are anybody's.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError || unicode.Is(unicode.Bidi_Control, r) {
			return '\uFFFD'
		}
		return r
	}, text)
}
