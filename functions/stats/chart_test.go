package stats

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/domain"
)

var update = flag.Bool("update", false, "write the golden files of the chart and the page again")

const projectID = "8f14e45fceea467f9a3d5c0b7e21d6aa"

func TestChartGolden(t *testing.T) {
	t.Parallel()
	for name, s := range cases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, "chart_"+name+".svg", chart(s))
		})
	}
}

func TestPageGolden(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mixed", "unknown", "hostile"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, "page_"+name+".html", page(cases()[name]))
		})
	}
}

func TestChartHasOneMarkForEachHour(t *testing.T) {
	t.Parallel()
	for name, s := range cases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for where, image := range map[string][]byte{"chart": chart(s), "page": inlineSVG(t, page(s))} {
				checkMarks(t, where, s.hours, parse(t, image))
			}
		})
	}
}

// checkMarks finds that the hours are drawn in their order, each once: as a bar when known, as a gap when not.
func checkMarks(t *testing.T, where string, hours []domain.HourStat, root element) {
	t.Helper()
	marks := root.find("g", "hour")
	if len(marks) != len(hours) {
		t.Fatalf("%s: %d marks for %d hours", where, len(marks), len(hours))
	}
	for i, h := range hours {
		mark, bars, gaps := marks[i], len(marks[i].find("rect", "bar")), len(marks[i].find("rect", "mark"))
		switch {
		case h.Source == domain.Missing && (bars != 0 || gaps != 1):
			t.Errorf("%s: missing hour %d has %d bars and %d gap marks", where, i, bars, gaps)
		case h.Source != domain.Missing && (bars != 1 || gaps != 0 || !mark.is(string(h.Source))):
			t.Errorf("%s: %s hour %d has %d bars and %d gap marks, class %q",
				where, h.Source, i, bars, gaps, mark.attr("class"))
		}
		if got, want := len(mark.find("rect", "maybe")) == 1, h.Uncertain > 0; got != want {
			t.Errorf("%s: hour %d shows uncertain servers: %v, it has %d", where, i, got, h.Uncertain)
		}
		if got, want := len(mark.find("circle", "launched")) == 1, domain.Deref(h.Launched) > 0; got != want {
			t.Errorf("%s: hour %d shows launched servers: %v, it has %v", where, i, got, h.Launched)
		}
		if got := mark.find("title", ""); len(got) != 1 || got[0].Text != hint(h) {
			t.Errorf("%s: hour %d is titled %v, want %q", where, i, got, hint(h))
		}
	}
}

func TestChartMissingNeverLooksLikeZero(t *testing.T) {
	t.Parallel()
	hours := parse(t, chart(view(row(2, 3), row(0, 0), missing()))).find("g", "hour")
	zero, gap := hours[1], hours[2]
	if got := zero.find("rect", "bar"); len(got) != 1 || got[0].attr("height") != "1.5" {
		t.Errorf("a zero is drawn as %+v, want a thin bar on the axis", got)
	}
	if len(gap.find("rect", "bar")) != 0 || len(gap.find("path", "band")) != 1 {
		t.Errorf("a missing hour is drawn as %+v, want a tinted column without a bar", gap)
	}
	if got, want := gap.find("title", "")[0].Text, "2026-01-01 19:00Z: not known"; got != want {
		t.Errorf("a missing hour is titled %q, want %q", got, want)
	}
	body := string(page(view(row(2, 3), row(0, 0), missing())))
	for _, want := range []string{
		`<dt>Last hour</dt><dd><span class="warn">not known</span>`,
		`19:00Z</th><td class="n warn">not known</td><td colspan="3"></td><td class="warn">missing</td>`,
		`18:00Z</th><td class="n">0</td><td class="n">0</td><td class="n">0</td>`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

func TestChartTotalBreaksAtMissing(t *testing.T) {
	t.Parallel()
	lines := parse(t, chart(view(row(1, 2), row(1, 4), missing(), row(2, 2)))).find("path", "total")
	// The first is the chart's, the second the legend's.
	if got, want := lines[0].attr("d"), "M60 177H240V72H420M600 177H780"; got != want {
		t.Errorf("total is %q, want %q", got, want)
	}
	if got := parse(t, chart(view(missing()))).find("path", "total"); len(got) != 1 {
		t.Errorf("an unknown total is drawn: %+v", got)
	}
}

// TestLaunchedInChart: more servers than ever ran concurrently fit the plot, and what is unknown is not zero.
func TestLaunchedInChart(t *testing.T) {
	t.Parallel()
	many, old := row(1, 1), row(1, 1)
	many.Launched, old.Launched = new(40), nil
	s := view(many, old, missing())
	dots := parse(t, chart(s)).find("circle", "launched")
	if len(dots) != 2 || dots[0].attr("cy") != "72" { // the second is the legend's
		t.Errorf("launched is drawn as %+v, want one dot at the top", dots)
	}
	if got, want := hint(s.hours[0]), "2026-01-01 17:00Z: 1 running of 1, 40 launched"; got != want {
		t.Errorf("the hour is titled %q, want %q", got, want)
	}
	body := string(page(s))
	for _, want := range []string{
		`<dt>Launched</dt><dd>40 <small>`,
		`17:00Z</th><td class="n">1</td><td class="n">1</td><td class="n">40</td>`,
		`18:00Z</th><td class="n">1</td><td class="n">1</td><td class="n"></td>`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if body = string(page(view(old))); !strings.Contains(body, `<dt>Launched</dt><dd><span class="warn">not known`) {
		t.Error("the page does not say that it is not known how many were launched")
	}
}

func TestChartNoteOfAnEmptyPlot(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]series{
		"":                                       view(row(0, 1), missing()),
		"Nothing is known of these hours":        view(missing(), missing()),
		"No servers in these hours":              view(row(0, 0), row(0, 0)),
		"No servers in the hours that are known": view(row(0, 0), missing()),
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			for _, note := range parse(t, chart(s)).find("text", "note") {
				got.WriteString(note.Text)
			}
			if got.String() != want {
				t.Errorf("note is %q, want %q", got.String(), want)
			}
		})
	}
}

func TestChartAxis(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]string{
		0: "0 1 2 3 4", 1: "0 1 2 3 4", 5: "0 1 2 3 4 5", 6: "0 2 4 6", 11: "0 5 10 15", 47: "0 10 20 30 40 50",
		1900: "0 500 1000 1500 2000", 9_999: "0 2k 4k 6k 8k 10k", 123_456: "0 50k 100k 150k",
	} {
		t.Run(strconv.Itoa(most), func(t *testing.T) {
			t.Parallel()
			d := newDrawing(view(row(0, most)), 0)
			var names []string
			for n := 0; n <= d.top; n += d.tick {
				names = append(names, d.tickName(n))
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("axis is %q, want %q", got, want)
			}
		})
	}
}

func TestChartLabelsDoNotTouch(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 720; n++ {
		d := newDrawing(view(make([]domain.HourStat, n)...), 0)
		d.labels()
		labels := strings.Count(d.String(), "<text")
		if apart := float64(d.labelEvery()) * d.step; apart < 84 && labels > 1 || labels == 0 || labels > 9 {
			t.Errorf("%d hours have %d labels, %v units apart", n, labels, apart)
		}
	}
}

func TestChartScope(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]domain.View{
		"Running servers, project p1": {
			Scope: domain.ScopeProject, ProjectID: "p1",
			DomainID: "d1",
		},
		"Running servers, domain d1":       {Scope: domain.ScopeDomain, DomainID: "d1"},
		"Running servers, the whole cloud": {Scope: domain.ScopeCloud},
		"Running servers, project \uFFFD\uFFFDa\uFFFD": {
			Scope:     domain.ScopeProject,
			ProjectID: "\x00\u202ea\xff",
		},
		"Running servers, domain " + strings.Repeat("é", 36) + "…": {
			Scope:    domain.ScopeDomain,
			DomainID: strings.Repeat("é", 99),
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			s := view(row(1, 1))
			s.view = v
			root := parse(t, chart(s))
			if got := root.find("title", "")[0].Text; got != want {
				t.Errorf("title is %q, want %q", got, want)
			}
			if got := root.find("text", "title")[0].Text; got != want {
				t.Errorf("heading is %q, want %q", got, want)
			}
		})
	}
}

func TestChartAndPageReferToNothingOutside(t *testing.T) {
	t.Parallel()
	own := strings.NewReplacer(`xmlns="http://www.w3.org/2000/svg"`, "", "url(#chart-hatch)", "")
	for name, s := range cases() {
		for where, body := range map[string][]byte{"chart": chart(s), "page": page(s)} {
			text := strings.ToLower(own.Replace(string(body)))
			for _, bad := range []string{
				"://", "url(", "@import", "<script", "<link", "<img", "<use", "<image", "href=", "src=",
				"javascript:", " on",
			} {
				if strings.Contains(text, bad) {
					t.Errorf("%s of %s has %q", where, name, bad)
				}
			}
		}
	}
}

func TestPageListsTheHoursNewestFirst(t *testing.T) {
	t.Parallel()
	first := row(1, 2)
	first.ByStatus = map[string]int{"SHUTOFF": 1, "ACTIVE": 1, "<b>": 0}
	body := string(page(view(first, row(3, 3))))
	rows := regexp.MustCompile(`<tr><th scope="row">.*</tr>`).FindAllString(body, -1)
	if len(rows) != 2 || !strings.Contains(rows[0], "18:00Z") || !strings.Contains(rows[1], "17:00Z") {
		t.Fatalf("rows are %q", rows)
	}
	want := `<span>&lt;b&gt; 0</span> <span>ACTIVE 1</span> <span>SHUTOFF 1</span>`
	if !strings.Contains(rows[1], want) {
		t.Errorf("row is %s, want %s", rows[1], want)
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is out of date: look at the difference, then run with -update", path)
	}
}

func inlineSVG(t *testing.T, page []byte) []byte {
	t.Helper()
	found := regexp.MustCompile(`(?s)<svg .*</svg>`).Find(page)
	if found == nil {
		t.Fatal("the page has no chart")
	}
	return found
}

// element is an element of an XML document, with the text directly in it.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Children []element  `xml:",any"`
}

func parse(t *testing.T, document []byte) (root element) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(document))
	if err := d.Decode(&root); err != nil {
		t.Fatalf("not well-formed: %v", err)
	}
	if token, err := d.Token(); !errors.Is(err, io.EOF) && strings.TrimSpace(fmt.Sprintf("%s", token)) != "" {
		t.Fatalf("after the image there is %v, %v", token, err)
	}
	return root
}

func (e element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (e element) is(class string) bool {
	return class == "" || strings.Contains(" "+e.attr("class")+" ", " "+class+" ")
}

// find lists the elements below with the name, and the class if it is not "".
func (e element) find(name, class string) (found []element) {
	for _, child := range e.Children {
		if child.XMLName.Local == name && child.is(class) {
			found = append(found, child)
		}
		found = append(found, child.find(name, class)...)
	}
	return found
}

// cases are the series of the golden files.
func cases() map[string]series {
	hostile := view(row(1, 2), missing())
	hostile.view.ProjectID = `</title><b a="1" b='2'>&amp;`
	hostile.hours[0].ByStatus = map[string]int{`<i>&"'`: 1}
	return map[string]series{
		"mixed":   view(mixed(24)...),
		"month":   view(mixed(720)...),
		"unknown": view(repeat(missing(), 24)...),
		"idle":    view(repeat(row(0, 0), 24)...),
		"hour":    view(row(3, 4)),
		"hostile": hostile,
	}
}

// view is a series of a project that begins at 2026-01-01 17:00Z; the hours need no time.
func view(hours ...domain.HourStat) series {
	first := time.Date(2026, 1, 1, 17, 0, 0, 0, time.UTC)
	for i := range hours {
		hours[i].Hour = first.Add(time.Duration(i) * time.Hour)
	}
	return series{view: domain.View{Scope: domain.ScopeProject, ProjectID: projectID}, hours: hours}
}

func row(running, total int) domain.HourStat {
	h := domain.HourStat{
		Running: &running, Total: &total, Launched: new(0), ByStatus: map[string]int{}, Source: domain.Sampled,
	}
	if running > 0 {
		h.ByStatus["ACTIVE"] = running
	}
	if total > running {
		h.ByStatus["SHUTOFF"] = total - running
	}
	return h
}

func missing() domain.HourStat {
	return domain.HourStat{ByStatus: map[string]int{}, Source: domain.Missing}
}

func repeat(h domain.HourStat, n int) []domain.HourStat {
	hours := make([]domain.HourStat, n)
	for i := range hours {
		hours[i] = h
	}
	return hours
}

// mixed are hours of every kind, with single and long gaps, a stretch that was rebuilt, and one with a zero.
func mixed(n int) []domain.HourStat {
	hours := make([]domain.HourStat, n)
	for i := range hours {
		running := 2 + min(i%24, 24-i%24)/2 + i*8/n
		hours[i] = row(running, running+1+i/5%3)
		hours[i].Launched = new(max(i%7-2, 0))
		switch day := i % 240; {
		case i == n/4:
			hours[i] = row(0, 3)
		case i == n*5/6:
			hours[i].Uncertain = 2
		case day == 9 || day == 15 || day == 16 || day > 100 && day < 112:
			hours[i] = missing()
		case day > 9 && day < 14 || day > 112 && day < 140 || day == 60:
			hours[i].Source = domain.Rebuilt
		}
	}
	return hours
}
