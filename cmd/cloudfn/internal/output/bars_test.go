package output

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

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
