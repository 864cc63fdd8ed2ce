package docs

import (
	"testing"
)

// TestOutputsAreCompared checks what missing ignores, and that it still finds differences.
func TestOutputsAreCompared(t *testing.T) {
	t.Parallel()
	const id = "019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"
	output := "NAME     STATE    ID\nweb-1    active   " + id + "\n03:00 ▇▇▇▇ 3\nsecret whsec_AAAA+b/c=\n"
	for name, tc := range map[string]struct {
		shows []string
		want  string
	}{
		"as it is":              {[]string{"NAME STATE ID", "web-1 active 01a1fd3f-3b06-75da-9cff-fac8a2d87f4e"}, ""},
		"bars and numbers":      {[]string{"14:00  ▇▇ 17"}, ""},
		"a secret":              {[]string{"secret whsec_BBBB"}, ""},
		"left out":              {[]string{"NAME STATE ID", "...", "14:00 ▇▇ 1"}, ""},
		"a part":                {[]string{"web-1 ... 019b7c5e-3a10-7c44-9d0b-2f6a1c0e9a11"}, ""},
		"another state":         {[]string{"web-1 stopped " + id}, "web-1 stopped " + id},
		"in another order":      {[]string{"web-1 ...", "NAME ..."}, "NAME ..."},
		"a line that is absent": {[]string{"web-2 ... x"}, "web-2 ... x"},
	} {
		if got := missing(tc.shows, output); got != tc.want {
			t.Errorf("%s: missing is %q, want %q", name, got, tc.want)
		}
	}
}

// TestAShellKeepsWhatItsCommandsSet checks that variables survive, and that each exit status is returned.
func TestAShellKeepsWhatItsCommandsSet(t *testing.T) {
	t.Parallel()
	s := open(t, map[string]string{"GIVEN": "there"})
	for _, tc := range []struct {
		command, out string
		status       int
	}{
		{"x=1; cat", "", 0},
		{"echo $x $GIVEN", "1 there\n", 0},
		{"echo a \\\n  b; false", "a b\n", 1},
		{"sleep 100 &", "", 0},
	} {
		if out, status := s.run(t, tc.command); out != tc.out || status != tc.status {
			t.Errorf("%s: %d %q", tc.command, status, out)
		}
	}
}
