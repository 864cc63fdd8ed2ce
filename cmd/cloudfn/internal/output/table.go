package output

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
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
	noHead   bool
}

const (
	ellipsis = "..." // ends a text that is not shown whole
	// The least widths of a column that is narrowed: the next one where that is not enough.
	minWidth   = 12
	least      = 6 // of a cell, but not of a title
	leastTitle = 7 // of a title, too
)

// wholeColumns are of no use when they are cut.
var wholeColumns = []string{"ID", "FIELDS"}

// whole is what a cell is of no use without: an id, that of a request, too, or a time.
var whole = regexp.MustCompile(
	`^((req-)?[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}|\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?Z)$`)

// withSeconds is a time as Time shows it.
var withSeconds = regexp.MustCompile(`^(\d{4}-\d\d-\d\d \d\d:\d\d):\d\dZ$`)

// fit narrows the widest columns until the table has its width. Ids stay whole, and times but for their seconds.
func (g grid) fit(widths []int) {
	isWhole := make([]bool, len(widths))
	for i := range isWhole {
		isWhole[i] = slices.Contains(wholeColumns, g.head[i]) ||
			slices.ContainsFunc(g.rows, func(row []string) bool { return whole.MatchString(row[i]) })
	}
	if g.narrow(widths, isWhole, minWidth) {
		return
	}
	for i := range widths {
		if !isWhole[i] {
			continue
		}
		widths[i] = cells(g.head[i])
		for _, row := range g.rows {
			row[i] = withSeconds.ReplaceAllString(row[i], "${1}Z")
			widths[i] = max(widths[i], cells(row[i]))
		}
	}
	if titled := slices.Clone(widths); g.narrow(titled, isWhole, least) || !g.narrow(widths, isWhole, leastTitle) {
		copy(widths, titled)
	}
}

// narrow narrows columns down to a width; for least, not below their titles. It reports whether that is enough.
func (g grid) narrow(widths []int, isWhole []bool, narrowest int) bool {
	excess := len(gap)*(len(widths)-1) - g.width
	for _, width := range widths {
		excess += width
	}
	for ; g.width > 0 && excess > 0; excess-- {
		widest := -1
		for i, width := range widths {
			isNarrow := width <= narrowest || narrowest == least && width <= cells(g.head[i])
			if !isNarrow && !isWhole[i] && (widest < 0 || width > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return false
		}
		widths[widest]--
	}
	return true
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
		if n == 0 && g.noHead {
			continue
		}
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
func Clean(text string) string { return strings.Map(cleanRune, text) }

func cleanRune(r rune) rune {
	if unicode.IsControl(r) || r == utf8.RuneError || unicode.Is(unicode.Bidi_Control, r) {
		return '\uFFFD'
	}
	return r
}

// Bar is one of a chart: Part of All.
type Bar struct {
	Label      string
	Part, All  int
	Missing    bool   // Part and All are unknown
	More       string // behind the numbers, such as "(2 launched) +1 uncertain"
	Annotation string
}

// Bars is a chart of horizontal bars, for a terminal.
type Bars struct {
	Width int  // of the terminal
	ASCII bool // the terminal shows nothing else
	Color bool
}

// narrowest is the least width of the longest bar, in cells.
const narrowest = 10

// eighths are blocks of 1/8 to 8/8 of a cell.
var eighths = []rune("▏▎▍▌▋▊▉█")

// The cells of a bar: its part, and the rest of all.
const (
	partUTF8, restUTF8   = "█", "░"
	partASCII, restASCII = "#", "-"
)

// Legend says what the cells mean.
func (b Bars) Legend(part, rest string) string {
	p, r := partUTF8, restUTF8
	if b.ASCII {
		p, r = partASCII, restASCII
	}
	p, r = style(b.Color, green, p), style(b.Color, dim, r)
	return p + " " + Clean(part) + gap + r + " " + Clean(rest)
}

// Write prints a line for each bar. The largest fills the width.
func (b Bars) Write(out io.Writer, bars []Bar) error {
	labels, ends, largest := 0, 0, 1
	for _, one := range bars {
		labels, ends = max(labels, cells(one.Label)), max(ends, cells(one.end()))
		largest = max(largest, one.All)
	}
	room := max(b.Width-labels-ends-2*len(gap), narrowest)
	w := bufio.NewWriter(out)
	for _, one := range bars {
		padding := strings.Repeat(" ", labels-cells(one.Label))
		line := padding + style(b.Color, dim, one.Label) + gap + b.bar(one, room, largest) + gap + b.paintedEnd(one)
		_, _ = w.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return w.Flush()
}

// Meter draws a part of all alone, in so many cells and without color.
func (b Bars) Meter(part, all, width int) string {
	b.Color = false
	return b.bar(Bar{Part: part, All: max(all, 1)}, width, max(all, 1))
}

// bar draws one in so many cells.
func (b Bars) bar(one Bar, room, largest int) string {
	if one.Missing {
		return strings.Repeat(" ", room)
	}
	part := b.part(one.Part, room, largest)
	length := cells(part)
	rest := max((one.All*room+largest/2)/largest-length, 0)
	if rest == 0 && one.All > one.Part && length < room {
		rest = 1 // at least a sign of it
	}
	shade := restUTF8
	if b.ASCII {
		shade = restASCII
	}
	drawn := style(b.Color, green, part) + style(b.Color, dim, strings.Repeat(shade, rest))
	return drawn + strings.Repeat(" ", room-length-rest)
}

// part draws n, to an eighth of a cell outside ASCII. Any n but 0 shows.
func (b Bars) part(n, room, largest int) string {
	if n <= 0 {
		return ""
	}
	if b.ASCII {
		return strings.Repeat(partASCII, max((n*room+largest/2)/largest, 1))
	}
	length := max((n*room*len(eighths)+largest/2)/largest, 1)
	text := strings.Repeat(partUTF8, length/len(eighths))
	if left := length % len(eighths); left > 0 {
		text += string(eighths[left-1])
	}
	return text
}

// end is the line's end, in words.
func (b Bar) end() string {
	if b.Missing {
		return "missing"
	}
	text := fmt.Sprintf("%d of %d", b.Part, b.All)
	if b.More != "" {
		text += " " + b.More
	}
	if b.Annotation != "" {
		text += gap + b.Annotation
	}
	return text
}

func (b Bars) paintedEnd(one Bar) string {
	if one.Missing {
		return Paint(b.Color, one.end())
	}
	text, annotation, _ := strings.Cut(one.end(), gap)
	if annotation == "" {
		return text
	}
	return text + gap + Paint(b.Color, annotation)
}

// Row is one thing that is on its way: what it is called, how far it has come, and what there is to say of it.
type Row struct {
	Name, State, Note string
	IsFinal           bool // nothing more happens to it
}

// Progress shows things on their way: at a terminal as lines that are redrawn, elsewhere as a line for each change.
type Progress struct {
	Out   io.Writer
	Color bool
	Size  func() (width, height int) // of the terminal; nil = Out is not a terminal
	Began time.Time

	drawn int                      // lines that are to be drawn over
	shown map[string]Row           // by their names, as they were last shown
	over  map[string]time.Duration // how long those took that are over
}

// Show shows how things stand at a moment. Names are unique.
func (p *Progress) Show(now time.Time, rows []Row) {
	if p.shown == nil {
		p.shown, p.over = map[string]Row{}, map[string]time.Duration{}
	}
	elapsed := now.Sub(p.Began)
	for _, row := range rows {
		if _, known := p.over[row.Name]; row.IsFinal && !known {
			p.over[row.Name] = elapsed
		}
	}
	if p.Size == nil {
		p.changes(elapsed, rows)
		return
	}
	p.draw(elapsed, rows)
}

func (p *Progress) changes(elapsed time.Duration, rows []Row) {
	for _, row := range rows {
		if p.shown[row.Name] == row {
			continue
		}
		p.shown[row.Name] = row
		state := Paint(p.Color, row.State)
		words := []string{fmt.Sprintf("%5s", seconds(elapsed)), Clean(row.Name), state, Clean(row.Note)}
		fmt.Fprintln(p.Out, strings.TrimRight(strings.Join(words, gap), " "))
	}
}

// draw draws over what it drew before. What does not fit is counted: a terminal that scrolls cannot be drawn over.
func (p *Progress) draw(elapsed time.Duration, rows []Row) {
	width, height := p.Size()
	fitting, left := rows, 0
	if most := max(height-2, 1); len(rows) > most {
		fitting, left = inMotion(rows, most), len(rows)-most
	}
	names, states := 0, 0
	for _, row := range fitting {
		names, states = max(names, cells(row.Name)), max(states, cells(row.State))
	}
	names = min(names, max(width-states-12, 8)) // a line that wraps cannot be drawn over
	var text strings.Builder
	if p.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", p.drawn)
	}
	for _, row := range fitting {
		took := elapsed
		if over, ok := p.over[row.Name]; ok {
			took = over
		}
		name, state := cut(pad(row.Name, names), names), pad(row.State, states)
		state = strings.Replace(state, Clean(row.State), Paint(p.Color, row.State), 1)
		words := []string{name, state, fmt.Sprintf("%5s", seconds(took)), cut(row.Note, width-names-states-12)}
		text.WriteString("\r\x1b[K" + strings.Join(words, gap) + "\n")
	}
	p.drawn = len(fitting)
	if left > 0 {
		fmt.Fprintf(&text, "\r\x1b[K... and %d more\n", left)
		p.drawn++
	}
	text.WriteString("\x1b[J")
	_, _ = io.WriteString(p.Out, text.String())
}

// inMotion are n of the rows: those that are not over first, in their order.
func inMotion(rows []Row, n int) []Row {
	var first, last []Row
	for _, row := range rows {
		if row.IsFinal {
			last = append(last, row)
		} else {
			first = append(first, row)
		}
	}
	return append(first, last...)[:n]
}

func seconds(d time.Duration) string { return fmt.Sprintf("%ds", int(d.Seconds())) }

func pad(text string, width int) string {
	text = Clean(text)
	return text + strings.Repeat(" ", max(0, width-cells(text)))
}

func cut(text string, width int) string {
	text = Clean(text)
	if cells(text) <= width {
		return text
	}
	var short strings.Builder
	for rest := uniseg.NewGraphemes(text); rest.Next() && rest.Width() <= width; width -= rest.Width() {
		short.WriteString(rest.Str())
	}
	return short.String()
}
