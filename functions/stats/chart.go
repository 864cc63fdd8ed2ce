package stats

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// The drawing, in units of its viewBox, which are in page.html too. The margins leave room for labels of twice
// the size: that is what a narrow screen gets.
const (
	height  = 356
	left    = 60 // of the plot
	plotW   = 720
	top     = 72
	plotH   = 210
	base    = top + plotH
	headH   = top - 16 // what the page cuts off, because it has a heading of its own
	spaced  = 6        // the width from which an hour has room for a space between bars
	idRunes = 36       // of an id are shown; a stranger's project_id may be any text
)

//go:embed page.html
var pageText string

// templates has the page, and the frame of the chart.
var templates = template.Must(template.New("page").Funcs(template.FuncMap{
	"known": known, "stamp": stamp, "day": day,
	"hint": hint,
}).Parse(pageText))

// chart draws one or more hours as a self-contained SVG image.
func chart(s series) []byte {
	d := newDrawing(s, 0)
	d.draw()
	return d.Bytes()
}

// page shows the chart with its numbers, in HTML that needs nothing else.
func page(s series) []byte {
	d := newDrawing(s, headH)
	d.draw()
	newest := slices.Clone(s.hours)
	slices.Reverse(newest)
	var b bytes.Buffer
	execute(&b, "page", map[string]any{
		"Scope": scopeName(s.view), "Facts": d.Facts, "Newest": newest,
		"Chart": template.HTML(d.String()), //nolint:gosec // the drawing escapes what others wrote
	})
	return b.Bytes()
}

// execute panics when the template does not fit the kind of data: the tests see that.
func execute(b *bytes.Buffer, name string, data any) {
	if err := templates.ExecuteTemplate(b, name, data); err != nil {
		panic(err)
	}
}

// drawing is an SVG image in the making. The templates read its exported fields.
type drawing struct {
	bytes.Buffer
	Scope string
	Facts facts
	Cut   int // units at the top that are left out, with the heading
	hours []domain.HourStat
	step  float64 // the width of an hour
	tick  int     // servers from one line of the grid to the next
	top   int     // servers at the top of the grid
}

func newDrawing(s series, cut int) *drawing {
	f := factsOf(s)
	tick := niceTick(f.Most)
	top := max((f.Most+tick-1)/tick*tick, 4) // at least 4, so that one server does not look like a full house
	return &drawing{
		Scope: scopeName(s.view), Facts: f, Cut: cut,
		hours: s.hours, step: float64(plotW) / float64(len(s.hours)), tick: tick, top: top,
	}
}

// Height is the image's, from the cut on.
func (d *drawing) Height() int { return height - d.Cut }

// niceTick is the smallest of 1, 2, 5, 10, 20, 50, ... that reaches most in five steps.
func niceTick(most int) int {
	for size := 1; ; size *= 10 {
		for _, n := range []int{1, 2, 5} {
			if n*size*5 >= most {
				return n * size
			}
		}
	}
}

func (d *drawing) printf(format string, args ...any) { _, _ = fmt.Fprintf(d, format, args...) }

func (d *drawing) draw() {
	execute(&d.Buffer, "head", d)
	d.grid()
	class := "hours"
	if d.step < spaced {
		class = "hours dense"
	}
	d.printf(`<g class="%s">`+"\n", class)
	for i, h := range d.hours {
		if known(h) {
			d.bar(i, h)
		} else {
			d.gap(i, h)
		}
	}
	d.total()
	d.printf("</g>\n")
	d.labels()
	execute(&d.Buffer, "foot", d)
}

func (d *drawing) grid() {
	for n := 0; n <= d.top; n += d.tick {
		y := num(d.y(n))
		if n > 0 {
			d.printf(`<path class="grid" d="M%d %sh%d"/>`, left, y, plotW)
		}
		d.printf(`<text x="%d" y="%s" dy=".35em" text-anchor="end">%s</text>`+"\n", left-10, y, d.tickName(n))
	}
	every := max(d.labelEvery(), 24)
	for i, h := range d.hours {
		if i > 0 && isEvery(every, h) {
			d.printf(`<path class="midnight" d="M%s %dv%d"/>`+"\n", num(d.x(i)), top, plotH+7)
		}
	}
}

// tickName writes big numbers in thousands, all of an axis alike.
func (d *drawing) tickName(n int) string {
	if d.top >= 10_000 && n > 0 {
		return strconv.Itoa(n/1000) + "k"
	}
	return strconv.Itoa(n)
}

func (d *drawing) bar(i int, h domain.HourStat) {
	x, w := d.slot(i)
	tall := max(float64(*h.Running)/float64(d.top)*plotH, 1.5) // a zero that is known is a thin line
	d.printf(`<g class="hour %s"><title>%s</title><path class="hit" d="M%s %dh%sv%dh-%[5]sz"/>`,
		h.Source, hint(h), num(d.x(i)), top, num(d.step), plotH)
	d.printf(`<rect class="bar" x="%s" y="%s" width="%s" height="%s"/>`, num(x), num(base-tall), num(w), num(tall))
	if h.Uncertain > 0 { // above the bar, because so many more may have run
		more := float64(h.Uncertain) / float64(d.top) * plotH
		d.printf(`<rect class="maybe" x="%s" y="%s" width="%s" height="%s"/>`,
			num(x), num(base-tall-more), num(w), num(more))
	}
	if h.Launched != nil && *h.Launched > 0 {
		d.printf(`<circle class="launched" cx="%s" cy="%s" r="%s"/>`,
			num(d.x(i)+d.step/2), num(d.y(*h.Launched)), num(max(min(d.step/4, 4), 1.5)))
	}
	d.printf("</g>\n")
}

// gap marks a missing hour: a tinted column without a bar, and a mark below the axis, where no bar can be. The mark is
// wide enough to be found among 720 hours.
func (d *drawing) gap(i int, h domain.HourStat) {
	x, w := d.slot(i)
	if w < 2.5 {
		x, w = x-(2.5-w)/2, 2.5
	}
	d.printf(`<g class="hour gap"><title>%s</title><path class="band" d="M%s %dh%sv%dh-%[4]sz"/>`,
		hint(h), num(d.x(i)), top, num(d.step), plotH)
	d.printf(`<rect class="mark" x="%s" y="%d" width="%s" height="4"/></g>`+"\n", num(x), base+3, num(w))
}

// total draws a step line, broken where the total is not known.
func (d *drawing) total() {
	var path strings.Builder
	drawing := false
	for i, h := range d.hours {
		if !known(h) {
			drawing = false
			continue
		}
		verb := "M" + num(d.x(i)) + " "
		if drawing {
			verb = "V"
		}
		path.WriteString(verb + num(d.y(*h.Total)) + "H" + num(d.x(i+1)))
		drawing = true
	}
	if path.Len() > 0 {
		d.printf(`<path class="total" d="%s"/>`+"\n", path.String())
	}
}

func (d *drawing) labels() {
	every := d.labelEvery()
	for i, h := range d.hours {
		if !isEvery(every, h) {
			continue
		}
		class, text := "", h.Hour.UTC().Format("15:04")
		if h.Hour.UTC().Hour() == 0 {
			class, text = ` class="day"`, h.Hour.UTC().Format("Jan 2")
		}
		d.printf(`<text%s x="%s" y="%d" dy=".8em" text-anchor="middle">%s</text>`+"\n",
			class, num(d.x(i)+d.step/2), base+12,
			text)
	}
}

// labelEvery is how many hours lie between two labels: few enough that they do not touch on a narrow screen.
func (d *drawing) labelEvery() int64 {
	for _, n := range []int64{1, 2, 3, 6, 12, 24, 48} {
		if float64(n)*d.step >= 84 {
			return n
		}
	}
	return 96
}

func isEvery(hours int64, h domain.HourStat) bool { return h.Hour.Unix()/3600%hours == 0 }

func (d *drawing) x(hour int) float64    { return left + float64(hour)*d.step }
func (d *drawing) y(servers int) float64 { return base - float64(servers)/float64(d.top)*plotH }

// slot is where the bar of an hour begins, and its width.
func (d *drawing) slot(hour int) (x, w float64) {
	w = d.step
	if d.step >= spaced {
		w = min(d.step*.72, 56)
	}
	return d.x(hour) + (d.step-w)/2, w
}

// num writes a coordinate to a hundredth, as short as it can be.
func num(f float64) string { return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64) }

func known(h domain.HourStat) bool {
	return h.Source != domain.Missing && h.Running != nil && h.Total != nil
}

func stamp(h domain.HourStat) string { return h.Hour.UTC().Format("2006-01-02 15:04Z") }

func day(h domain.HourStat) string { return h.Hour.UTC().Format(time.DateOnly) }

// hint is the tooltip of an hour.
func hint(h domain.HourStat) string {
	if !known(h) {
		return stamp(h) + ": not known"
	}
	text := fmt.Sprintf("%s: %d running of %d", stamp(h), *h.Running, *h.Total)
	if h.Launched != nil {
		text += fmt.Sprintf(", %d launched", *h.Launched)
	}
	if h.Uncertain > 0 {
		text += fmt.Sprintf(", %d uncertain", h.Uncertain)
	}
	if h.Source == domain.Rebuilt {
		text += " (rebuilt)"
	}
	return text
}

func scopeName(v domain.View) string {
	id := v.ProjectID
	if v.Scope == domain.ScopeDomain {
		id = v.DomainID
	}
	if runes := []rune(id); len(runes) > idRunes {
		id = string(runes[:idRunes]) + "…"
	}
	id = strings.Map(printable, id)
	if v.Scope == domain.ScopeCloud {
		return "the whole cloud"
	}
	return string(v.Scope) + " " + id
}

// printable keeps out control characters, because XML cannot write most of them, and those that turn text around.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// facts sum a series up.
type facts struct {
	First, Last             domain.HourStat
	Peak                    *domain.HourStat // the first hour with the most running servers; nil when none is known
	Most                    int              // servers of an hour: running or not, uncertain, or launched
	Launched                *int             // in the hours that are known; nil when none is
	Hours, Missing, Rebuilt int
	Uncertain               int // hours with uncertain servers
}

func factsOf(s series) facts {
	f := facts{First: s.hours[0], Last: s.hours[len(s.hours)-1], Hours: len(s.hours)}
	for _, h := range s.hours {
		if !known(h) {
			f.Missing++
			continue
		}
		if h.Source == domain.Rebuilt {
			f.Rebuilt++
		}
		if f.Peak == nil || *h.Running > *f.Peak.Running {
			f.Peak = &h
		}
		if h.Uncertain > 0 {
			f.Uncertain++
		}
		f.Most = max(f.Most, *h.Running+h.Uncertain, *h.Total)
		if h.Launched != nil {
			sum := *h.Launched + domain.Deref(f.Launched)
			f.Launched, f.Most = &sum, max(f.Most, *h.Launched)
		}
	}
	return f
}
