package output

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Bar is one of a chart: Part of All.
type Bar struct {
	Label      string
	Part, All  int
	Missing    bool   // Part and All are unknown
	More       string // behind the numbers, such as "+1 uncertain"
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

// Meter draws a part of all by itself, in so many cells and without color.
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
