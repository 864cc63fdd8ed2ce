package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
)

type thing struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

var thingTable = Table[thing]{
	Name:    func(t thing) string { return t.Name },
	Columns: []string{"NAME", "STATE*", "MORE+"},
	Texts:   map[string]func(thing) string{"MORE": func(thing) string { return "" }},
}

func things(t *testing.T, all ...thing) []api.Item[thing] {
	t.Helper()
	items := make([]api.Item[thing], len(all))
	for i, one := range all {
		raw, err := json.Marshal(map[string]string{"name": one.Name, "state": one.State})
		if err != nil {
			t.Fatal(err)
		}
		items[i] = api.Item[thing]{Value: one, Raw: raw}
	}
	return items
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		printer Printer
		want    string
	}{
		"table": {Printer{Format: "table"}, "NAME    STATE\nweb     active\nréseau  -\n"},
		"wide":  {Printer{Format: "wide"}, "NAME    STATE   MORE\nweb     active  -\nréseau  -       -\n"},
		"columns": {
			Printer{Format: "table", Columns: []string{"state", "more"}},
			"STATE   MORE\nactive  -\n-       -\n",
		},
		"color": {
			Printer{Format: "table", Color: true, Columns: []string{"state"}},
			"\x1b[1mSTATE\x1b[0m\n\x1b[32mactive\x1b[0m\n-\n",
		},
		"sorted": {Printer{Format: "name", Sort: "Name"}, "réseau\nweb\n"},
		"sorted in the other order": {
			Printer{Format: "table", Sort: "state:desc", NoHeaders: true}, "web     active\nréseau  -\n",
		},
		"csv":   {Printer{Format: "csv"}, "name,state,more\nweb,active,\nréseau,,\n"},
		"value": {Printer{Format: "value", Columns: []string{"state", "name"}}, "active web\n réseau\n"},
		"name":  {Printer{Format: "name"}, "web\nréseau\n"},
		"yaml":  {Printer{Format: "yaml"}, "- name: web\n  state: active\n- name: réseau\n  state: \"\"\n"},
		"json": {
			Printer{Format: "json", Columns: []string{"NAME"}},
			"[\n  {\n    \"name\": \"web\"\n  },\n  {\n    \"name\": \"réseau\"\n  }\n]\n",
		},
	} {
		var out bytes.Buffer
		c.printer.Out = &out
		if err := List(&c.printer, things(t, thing{"web", "active"}, thing{"réseau", ""}), thingTable); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if out.String() != c.want {
			t.Errorf("%s:\n%q\nwant\n%q", name, out.String(), c.want)
		}
	}
	p := Printer{Out: &bytes.Buffer{}, Format: "table", Columns: []string{"nonsense"}}
	if err := List(&p, nil, thingTable); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("an unknown column gives %v", err)
	}
	p = Printer{Out: &bytes.Buffer{}, Format: "yaml", Columns: []string{"name", "nonsense"}}
	if err := List(&p, nil, thingTable); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("an unknown field gives %v", err)
	}
}

// TestFields shows fields by their paths in JSON, whatever their types; what is absent is empty.
func TestFields(t *testing.T) {
	t.Parallel()
	type inner struct {
		Name *string `json:"name"`
	}
	at, name := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "web"
	value := struct {
		thing
		At     time.Time      `json:"at"`
		Never  *time.Time     `json:"never"`
		N      *int           `json:"n"`
		Inner  *inner         `json:"inner"`
		None   *inner         `json:"none"`
		Kinds  []thingKind    `json:"kinds"`
		Data   map[string]any `json:"data"`
		Active bool           `json:"active"`
	}{
		thing: thing{Name: "outer"}, At: at, Inner: &inner{&name}, Kinds: []thingKind{"a", "b"}, Active: true,
		Data: map[string]any{"actor": map[string]any{"id": "me"}, "null": nil},
	}
	for path, want := range map[string]string{
		"name": "outer", "at": "2026-01-02 03:04:05Z", "never": "", "n": "", "inner.name": "web", "none.name": "",
		"kinds":         "a,b",
		"data.actor.id": "me", "data.actor.absent": "", "data.absent.id": "", "data.null": "", "active": "true",
	} {
		if got := text(field(reflect.ValueOf(value), path)); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

type thingKind string

// TestNamesCannotCommandATerminal: the name of a server must not clear the screen of a user who lists it.
func TestNamesCannotCommandATerminal(t *testing.T) {
	t.Parallel()
	evil := "\x1b[2Jweb\r\n\u202egpj.exe\x07"
	for _, format := range []string{"table", "name"} {
		var out bytes.Buffer
		p := Printer{Out: &out, Format: format}
		if err := List(&p, things(t, thing{evil, evil}), thingTable); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(out.String(), "\x1b\r\u202e\x07") {
			t.Errorf("-o %s: %q", format, out.String())
		}
	}
}

// TestEscape: JSON says the same, and is safe to look at.
func TestEscape(t *testing.T) {
	t.Parallel()
	const evil = "{\n  \"name\": \"a\u009b2J\u007f\u202eré\"\n}"
	got := Escape([]byte(evil))
	if want := "{\n  \"name\": \"a\\u009b2J\\u007f\\u202eré\"\n}"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
	var before, after map[string]string
	if err := errors.Join(json.Unmarshal([]byte(evil), &before), json.Unmarshal(got, &after)); err != nil ||
		before["name"] != after["name"] {
		t.Errorf("%q, want %q (%v)", after, before, err)
	}
}

// TestYAMLIsSafe to look at, too, and says what there is: YAML takes no control characters as they are.
func TestYAMLIsSafe(t *testing.T) {
	t.Parallel()
	const evil = "a\u009b2J\u007f\u202eré\x1b"
	var out bytes.Buffer
	p := Printer{Out: &out, Format: "yaml"}
	if err := List(&p, things(t, thing{evil, ""}), thingTable); err != nil {
		t.Fatal(err)
	}
	var read []struct{ Name string }
	if err := yaml.Unmarshal(out.Bytes(), &read); err != nil || len(read) != 1 || read[0].Name != evil ||
		strings.ContainsAny(out.String(), "\u009b\u007f\u202e\x1b") {
		t.Errorf("%q is read as %q (%v)", out.String(), read, err)
	}
}

// TestFull: what could not be written is an error in every format.
func TestFull(t *testing.T) {
	t.Parallel()
	for _, format := range Formats {
		p := Printer{Out: full{}, Format: format}
		if err := List(&p, things(t, thing{"web", "active"}), thingTable); !errors.Is(err, errFull) {
			t.Errorf("-o %s: %v", format, err)
		}
	}
}

// TestColumnsAreOfCells: a CJK character takes two, and an accent that is combined none.
func TestColumnsAreOfCells(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := Printer{Out: &out, Format: "table"}
	if err := List(&o, things(t, thing{"東京-1", "active"}, thing{"cafe\u0301", "active"}, thing{"plain", "active"}),
		thingTable); err != nil {
		t.Fatal(err)
	}
	if want := "NAME    STATE\n東京-1  active\ncafe\u0301    active\nplain   active\n"; out.String() != want {
		t.Errorf("it is\n%swant\n%s", out.String(), want)
	}
	for width, want := range map[int]string{1: "", 2: "東", 3: "東", 4: "東京", 5: "東京x"} {
		if got := cut("東京x", width); got != want {
			t.Errorf("in %d cells it is %q", width, got)
		}
	}
}

var errFull = errors.New("no space left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestProgress(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first := []Row{{Name: "web-1", State: "building"}, {Name: "web-2", State: "building"}}
	second := []Row{{Name: "web-1", State: "active", IsFinal: true, Note: "a-server"}, {
		Name:  "web-2",
		State: "building",
	}}
	t.Run("a line for each change", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		p := Progress{Out: &out, Began: began}
		p.Show(began, first)
		p.Show(began.Add(time.Second), first)
		p.Show(began.Add(12*time.Second), second)
		want := "   0s  web-1  building\n   0s  web-2  building\n  12s  web-1  active  a-server\n"
		if out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	})
	t.Run("redrawn at a terminal", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		p := Progress{Out: &out, Began: began, Size: func() (int, int) { return 40, 24 }}
		p.Show(began, first)
		out.Reset()
		p.Show(began.Add(12*time.Second), second)
		p.Show(began.Add(13*time.Second), second)
		want := "\x1b[2A\r\x1b[Kweb-1  active      12s  a-server\n\r\x1b[Kweb-2  building    13s  \n\x1b[J"
		if !strings.HasSuffix(out.String(), want) {
			t.Errorf("%q, want %q", out.String(), want)
		}
	})
	t.Run("a long name does not wrap", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		p := Progress{Out: &out, Began: began, Size: func() (int, int) { return 40, 24 }}
		p.Show(began, []Row{{Name: strings.Repeat("n", 255), State: "building"}})
		if want := "\r\x1b[K" + strings.Repeat("n", 20) + "  building     0s  \n\x1b[J"; out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	})
	t.Run("what does not fit is counted, and what moves goes first", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		p := Progress{Out: &out, Began: began, Size: func() (int, int) { return 20, 3 }}
		p.Show(began, second)
		if text := out.String(); !strings.Contains(text, "web-2") || strings.Contains(text, "web-1") ||
			!strings.Contains(text, "... and 1 more") {
			t.Errorf("%q", text)
		}
	})
}

// TestTableKeepsToTheTerminal narrows the widest columns only, never an id, and only in a table for people.
func TestTableKeepsToTheTerminal(t *testing.T) {
	t.Parallel()
	const id = "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01"
	type server struct {
		Name  string `json:"name"`
		Zone  string `json:"zone"`
		State string `json:"state"`
		ID    string `json:"id"`
	}
	table := Table[server]{Columns: []string{"NAME", "STATE*", "ZONE", "ID"}}
	long := strings.Repeat("東京", 60)
	for name, c := range map[string]struct {
		printer Printer
		zone    string
		width   int // of each line; 0 = as wide as it is
	}{
		"narrow":         {Printer{Format: "table", Width: 80}, "z", 80},
		"two are wide":   {Printer{Format: "table", Width: 90}, strings.Repeat("z", 200), 90},
		"wide enough":    {Printer{Format: "table", Width: 400}, "z", 0},
		"no terminal":    {Printer{Format: "table"}, "z", 0},
		"wide":           {Printer{Format: "wide", Width: 80}, "z", 0},
		"much too small": {Printer{Format: "table", Width: 20}, "z", 0},
	} {
		var out bytes.Buffer
		c.printer.Out = &out
		if err := Values(&c.printer, []server{{long, c.zone, "active", id}, {"db", "z", "error", id}}, table); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		isWhole := c.width == 0 && name != "much too small"
		if strings.Contains(lines[1], long) != isWhole || !strings.HasSuffix(lines[2], id) {
			t.Errorf("%s:\n%s", name, out.String())
		}
		for _, line := range lines {
			if n := cells(line); c.width > 0 && n > c.width {
				t.Errorf("%s: %d wide: %s", name, n, line)
			}
		}
	}
}

// TestIDsAndTimesAreWhole, whatever their columns are called.
func TestIDsAndTimesAreWhole(t *testing.T) {
	t.Parallel()
	type lease struct {
		Server string `json:"server_id"`
		End    string `json:"end"`
		Reason string `json:"reason"`
	}
	var out bytes.Buffer
	one := lease{"019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01", "2026-11-28 14:00:00Z", strings.Repeat("x", 80)}
	printer := Printer{Format: "table", Width: 80, Out: &out}
	table := Table[lease]{Columns: []string{"SERVER:server_id", "END:end", "REASON:reason"}}
	if err := Values(&printer, []lease{one}, table); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), one.Server+"  "+one.End+"  xxx") || !strings.Contains(out.String(), "x...") {
		t.Errorf("%s", &out)
	}
}

// TestManyColumnsFit: when columns of the usual least width are too many, they are narrowed down to their titles, and
// times lose their seconds.
func TestManyColumnsFit(t *testing.T) {
	t.Parallel()
	type request struct {
		At       string `json:"at"`
		Function string `json:"function"`
		Path     string `json:"path"`
		User     string `json:"user"`
		Request  string `json:"request_id"`
	}
	long := strings.Repeat("x", 30)
	one := request{"2026-11-28 14:00:00Z", long, long, long, "req-019b7c5e-7f60-7a88-b14f-6d0e5a4c3e01"}
	table := Table[request]{Columns: []string{"AT", "FUNCTION", "PATH", "USER", "REQUEST_ID"}}
	for width, want := range map[int]string{
		110: "2026-11-28 14:00:00Z  xxxxxxxxxxx...  xxxxxxxxxxx...  xxxxxxxxxxx...  req-",
		90:  "2026-11-28 14:00Z  xxxxx...  xxxxx...  xxxxxx...  req-",
	} {
		var out bytes.Buffer
		printer := Printer{Format: "table", Width: width, Out: &out}
		if err := Values(&printer, []request{one}, table); err != nil || !strings.Contains(out.String(), want) ||
			!strings.Contains(out.String(), one.Request) {
			t.Errorf("%d: %s, %v", width, &out, err)
		}
	}
}

// TestTitlesAreCutLast, and only where that lets the table fit.
func TestTitlesAreCutLast(t *testing.T) {
	t.Parallel()
	type node struct {
		Name string `json:"name"`
		By   string `json:"by"`
		More string `json:"more"`
	}
	table := Table[node]{Columns: []string{"NAME", "CORDONED_BY:by", "RESERVABLE:more"}}
	for width, want := range map[int]string{
		35: "NAME        CORDONED_BY  RESERVABLE\nxxxxxxx...  ",
		25: "NAME     CORD...  RESE...\nxxxx...  ",
		20: "NAME    CORDONED_BY  RESERVABLE\nxxx...  ",
	} {
		var out bytes.Buffer
		printer := Printer{Format: "table", Width: width, Out: &out}
		if err := Values(&printer, []node{{strings.Repeat("x", 30), "a", "b"}}, table); err != nil ||
			!strings.HasPrefix(out.String(), want) {
			t.Errorf("%d: %s, %v", width, &out, err)
		}
	}
}

var threeHours = []Bar{
	{Label: "01:00", Missing: true},
	{Label: "02:00", Part: 1, All: 4, Annotation: "rebuilt"},
	{Label: "03:00", Part: 3, All: 3},
	{Label: "04:00"},
}

func TestBars(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bars Bars
		want string
	}{
		"blocks": {Bars{Width: 42}, `
01:00                      missing
02:00  ████▌░░░░░░░░░░░░░  1 of 4  rebuilt
03:00  █████████████▌      3 of 3
04:00                      0 of 0`},
		"ascii": {Bars{Width: 42, ASCII: true}, `
01:00                      missing
02:00  #####-------------  1 of 4  rebuilt
03:00  ##############      3 of 3
04:00                      0 of 0`},
		"narrow": {Bars{Width: 5}, `
01:00              missing
02:00  ██▌░░░░░░░  1 of 4  rebuilt
03:00  ███████▌    3 of 3
04:00              0 of 0`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := c.bars.Write(&out, threeHours); err != nil {
				t.Fatal(err)
			}
			if got := "\n" + strings.TrimRight(out.String(), "\n"); got != c.want {
				t.Errorf("it is drawn as%s\nwant%s", got, c.want)
			}
		})
	}
}

// TestBarsShowWhatIsThere draws one of a thousand, and nothing of nothing.
func TestBarsShowWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, ascii := range []bool{false, true} {
		b := Bars{ASCII: ascii}
		if got := b.bar(Bar{Part: 1, All: 1}, 20, 1000); strings.TrimSpace(got) == "" ||
			utf8.RuneCountInString(got) != 20 {
			t.Errorf("1 of 1000 is %q", got)
		}
		if got := b.bar(Bar{Part: 1000, All: 1001}, 20, 1001); utf8.RuneCountInString(got) != 20 {
			t.Errorf("1000 of 1001 is %q", got)
		}
		if got := b.bar(Bar{All: 1}, 20, 1000); strings.TrimSpace(got) == "" {
			t.Error("one that does not run is not shown")
		}
		if got := b.bar(Bar{}, 20, 1000); strings.TrimSpace(got) != "" {
			t.Errorf("nothing is %q", got)
		}
	}
}

func TestBarsInColor(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := Bars{Width: 42, Color: true}
	if err := b.Write(&out, threeHours); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\x1b[31mmissing\x1b[0m", "\x1b[33mrebuilt\x1b[0m", "\x1b[32m████▌\x1b[0m",
		"\x1b[2m░",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in %q", want, out.String())
		}
	}
	if got := b.Legend("running", "not running"); got != "\x1b[32m█\x1b[0m running  \x1b[2m░\x1b[0m not running" {
		t.Errorf("the legend is %q", got)
	}
	if got := (Bars{ASCII: true}).Legend("running", "not running"); got != "# running  - not running" {
		t.Errorf("the legend in ASCII is %q", got)
	}
}

// TestPlain: a cell is no formula of a spreadsheet, numbers have their order, and one thing has a value in each line.
func TestPlain(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := Printer{Out: &out, Format: "csv", Sort: "state", NoHeaders: true}
	all := things(t, thing{"=1+1", "10"}, thing{`a,"b"`, "9"}, thing{"\x1b[1m", "-1"})
	const want = "\uFFFD[1m,-1,\n\"a,\"\"b\"\"\",9,\n'=1+1,10,\n"
	if err := List(&p, all, thingTable); err != nil || out.String() != want {
		t.Errorf("got %q, %v", out.String(), err)
	}
	out.Reset()
	p = Printer{Out: &out, Format: "value"}
	if err := One(&p, all[0], thingTable); err != nil || out.String() != "=1+1\n10\n\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
	p = Printer{Out: &out, Format: "table", Sort: "size"}
	if err := List(&p, all, thingTable); err == nil || !strings.Contains(err.Error(), "name, state, more") {
		t.Errorf("got %v", err)
	}
}
