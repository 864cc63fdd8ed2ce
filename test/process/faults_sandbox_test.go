package process_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestFaultOptionalPieces: the sandbox stops and starts single pieces of Cinder, Octavia and Barbican, and says which
// are down.
func TestFaultOptionalPieces(t *testing.T) {
	pieces := []string{"cinder-scheduler", "cinder-volume", "octavia-worker", "barbican"}
	down := func() (names []string, err error) {
		out, err := exec.Command(filepath.Join(testkit.Root(), "scripts", "sandbox"), "status").Output()
		for line := range strings.Lines(string(out)) {
			if name, rest, _ := strings.Cut(line, " "); strings.TrimSpace(rest) == "DOWN" {
				names = append(names, name)
			}
		}
		return names, err
	}
	stopServices(t, pieces...)
	if names, err := down(); strings.Join(names, " ") != strings.Join(pieces, " ") || err == nil {
		t.Errorf("down are %q (%v), want %q and an error", names, err, pieces)
	}
	startServices(t, pieces...)
	if names, err := down(); len(names) != 0 || err != nil {
		t.Errorf("after the start %q are down (%v)", names, err)
	}
}
