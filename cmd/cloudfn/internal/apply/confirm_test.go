package apply

import (
	"context"
	"slices"
	"strings"
	"testing"
)

// TestConfirm shows the changes at a terminal, and makes them after a yes, or with --yes without a question.
func TestConfirm(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		isWanted, isApplied bool
		asked               int
		args                string
	}{
		"yes": {true, true, 1, "apply"}, "no": {false, false, 1, "apply"}, "sure": {false, true, 0, "apply --yes"},
		"dry": {false, false, 0, "apply --dry-run"},
	} {
		asked := 0
		s := &service{confirm: func(_ context.Context, question string) (bool, error) {
			asked++
			if question != "Make 3 changes?" {
				t.Errorf("it asks %q", question)
			}
			return row.isWanted, nil
		}}
		out, notes, err := run(t, s, strings.Fields(row.args)...)
		isApplied := slices.Contains(s.calls, "PUT /v1/managed/Volume/data")
		if isApplied != row.isApplied || asked != row.asked || (row.asked == 1 && !row.isWanted) != (err != nil) {
			t.Errorf("%s: it asks %d times, calls %s, and ends with %v", name, asked, s.calls, err)
		}
		isNoted := strings.Contains(notes, "spec.size_gb: 10 -> 20")
		if asked > 0 && !isNoted || strings.Contains(out, "->") == (name != "dry") {
			t.Errorf("%s: it prints %s, and notes %s", name, out, notes)
		}
	}
}

// TestPlannedVersion: what others have changed or made since the plan is not overwritten.
func TestPlannedVersion(t *testing.T) {
	t.Parallel()
	s := &service{matches: map[string]string{}}
	if _, _, err := run(t, s, "apply"); err != nil {
		t.Fatal(err)
	}
	for call, want := range map[string]string{
		"PUT /v1/managed/Volume/data": `"3"`, "PUT /v1/managed/VirtualMachine/web": "*", "PUT /v1/flavors/small": "*",
	} {
		if got := s.matches[call]; got != want {
			t.Errorf("%s expects %q, want %q", call, got, want)
		}
	}
}
