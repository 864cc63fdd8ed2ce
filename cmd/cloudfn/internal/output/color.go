package output

import "strings"

// Codes of ECMA-48, Select Graphic Rendition. The terminal's user chooses what the colors look like.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// colors of states. Those that are not listed need no attention.
var colors = colorsOf(map[string]string{
	green: "active done verified delivered up yes ready sampled moved create",
	red:   "error failed partial rolled_back lost dead gone missing suspended delete replace",
	yellow: "requested building build updating rebooting reboot hard_reboot deleting running pending due unknown " +
		"rebuild rebuilt creating degraded suspect migrating confirming skipped update",
	dim: "stopped shutoff shelved shelved_offloaded deleted expired paused cancelled none",
})

func colorsOf(states map[string]string) map[string]string {
	colors := map[string]string{}
	for color, names := range states {
		for name := range strings.FieldsSeq(names) {
			colors[name] = color
		}
	}
	return colors
}

// Paint colors a state by its name, and cleans it.
func Paint(on bool, state string) string {
	state = Clean(state)
	code, ok := colors[strings.ToLower(state)]
	switch {
	case ok:
		return style(on, code, state)
	case len(state) == 3 && state >= "500" && state <= "599": // an HTTP status
		return style(on, red, state)
	case len(state) == 3 && state >= "400" && state <= "499":
		return style(on, yellow, state)
	}
	return state
}

// Bold is for headings.
func Bold(on bool, text string) string { return style(on, bold, Clean(text)) }

// Removed is for a line that a change removes, and Added for one that it adds.
func Removed(on bool, text string) string { return style(on, red, Clean(text)) }

// Added is the other one.
func Added(on bool, text string) string { return style(on, green, Clean(text)) }

// Dim is for what matters less.
func Dim(on bool, text string) string { return style(on, dim, Clean(text)) }

func style(on bool, code, text string) string {
	if !on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
