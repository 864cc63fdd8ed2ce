package domain

// ConsoleType is a type of remote console, as Nova names it.
type ConsoleType string

// The types of remote consoles.
const (
	ConsoleNoVNC  ConsoleType = "novnc"
	ConsoleSPICE  ConsoleType = "spice-html5"
	ConsoleRDP    ConsoleType = "rdp-html5"
	ConsoleSerial ConsoleType = "serial"
	ConsoleWebMKS ConsoleType = "webmks"
)
