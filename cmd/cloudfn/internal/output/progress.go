package output

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rivo/uniseg"
)

// Row is one thing that is on its way: what it is called, how far it has come, and what there is to say of it.
type Row struct {
	Name, State, Note string
	IsFinal           bool // nothing more happens to it
}

// Progress shows things on their way: at a terminal as lines that are drawn anew, elsewhere as a line for each change.
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
