package output

import (
	"bufio"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// gap stands between two columns.
const gap = "  "

// grid is a table that is ready to be printed.
type grid struct {
	head     []string
	rows     [][]string
	isState  []bool // which columns are colored
	hasColor bool
	width    int // that the table may have; 0 = any
}

const (
	ellipsis = "..." // ends a text that is not shown whole
	minWidth = 12    // of a column that is narrowed
)

// whole is what a cell is of no use without: an id, or a time.
var whole = regexp.MustCompile(`^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)$`)

// fit narrows the widest columns until the table has its width. Ids and times stay whole.
func (g grid) fit(widths []int) {
	isWhole := make([]bool, len(widths))
	for i := range isWhole {
		isWhole[i] = g.head[i] == "ID" ||
			slices.ContainsFunc(g.rows, func(row []string) bool { return whole.MatchString(row[i]) })
	}
	excess := len(gap)*(len(widths)-1) - g.width
	for _, width := range widths {
		excess += width
	}
	for ; g.width > 0 && excess > 0; excess-- {
		widest := -1
		for i, width := range widths {
			if width > minWidth && !isWhole[i] && (widest < 0 || width > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// shorten marks a text that is cut, because it is wider than its column.
func shorten(text string, width int) string {
	if cells(text) <= width {
		return text
	}
	return cut(text, width-len(ellipsis)) + ellipsis
}

// write prints the head and the rows, each column as wide as its widest cell, or as the table's width lets it be.
func (g grid) write(out io.Writer) error {
	for _, row := range g.rows {
		for i := range row {
			if row[i] = Clean(row[i]); row[i] == "" {
				row[i] = "-"
			}
		}
	}
	all := slices.Concat([][]string{g.head}, g.rows)
	widths := widths(all)
	g.fit(widths)
	w := bufio.NewWriter(out)
	for n, row := range all {
		for i, cell := range row {
			cell = shorten(cell, widths[i])
			padding := strings.Repeat(" ", widths[i]-cells(cell))
			switch {
			case n == 0:
				cell = style(g.hasColor, bold, cell)
			case g.isState[i]:
				cell = Paint(g.hasColor, cell)
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

// writeFacts prints rows of a label and a text, which is clean and colored already.
func (g grid) writeFacts(out io.Writer) error {
	widths := widths(g.rows)
	w := bufio.NewWriter(out)
	for _, row := range g.rows {
		padding := strings.Repeat(" ", widths[0]-cells(row[0]))
		_, _ = w.WriteString(style(g.hasColor, bold, row[0]) + padding + gap + row[1] + "\n")
	}
	return w.Flush()
}

func widths(rows [][]string) []int {
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

// cells is how wide a terminal shows a text: 2 for a CJK character, 0 for a combining accent.
func cells(text string) int { return uniseg.StringWidth(text) }

// Clean replaces characters that could command a terminal: anybody may choose a server's name.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError || unicode.Is(unicode.Bidi_Control, r) {
			return '\uFFFD'
		}
		return r
	}, text)
}
