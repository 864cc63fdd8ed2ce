package output

import "strings"

// What a terminal is told (ECMA-48, Select Graphic Rendition). The colors are those that its user has chosen.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// colors of what a state says, in lower case. What is not listed is in motion, or nothing to look at.
var colors = map[string]string{
	"active": green, "done": green, "verified": green, "delivered": green, "up": green, "yes": green, "ready": green, "sampled": green,
	"error": red, "failed": red, "partial": red, "rolled_back": red, "lost": red, "dead": red, "gone": red, "missing": red, "suspended": red,
	"requested": yellow, "building": yellow, "build": yellow, "updating": yellow, "rebooting": yellow, "reboot": yellow, "hard_reboot": yellow,
	"deleting": yellow, "running": yellow, "pending": yellow, "due": yellow, "unknown": yellow, "rebuild": yellow, "rebuilt": yellow,
	"stopped": dim, "shutoff": dim, "shelved": dim, "shelved_offloaded": dim, "deleted": dim, "expired": dim, "paused": dim,
}

// Paint colors a state by what it says, and cleans it.
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

// Bold and Dim are for what is no state.
func Bold(on bool, text string) string { return style(on, bold, Clean(text)) }

// Dim is for what matters less.
func Dim(on bool, text string) string { return style(on, dim, Clean(text)) }

func style(on bool, code, text string) string {
	if !on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
