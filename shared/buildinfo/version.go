// Package buildinfo knows the version of the running binary.
package buildinfo

import (
	"cmp"
	"runtime/debug"
)

// version is set by the linker to the output of git describe (see scripts/version).
var version string

// Version returns the output of git describe at build time. A binary that was built by go build or go install alone
// has the version that Go derives from the repository, or "(devel)".
func Version() string {
	fromGo := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		fromGo = info.Main.Version
	}
	return cmp.Or(version, fromGo, "(devel)")
}
