package apperr

import "testing"

// TestNearest finds what a misspelled name stands for, and nothing for an entirely different one.
func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"count", "flavor", "image", "key_name", "networks"}
	for name, want := range map[string]string{
		"counts": "count", "Key_name": "key_name", "falvor": "flavor", "netwoks": "networks", "shade": "", "": "",
		"size": "", "keyname": "key_name",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%q is near to %q, want %q", name, got, want)
		}
	}
	if got := Suggestion("shade", known); got != "expected one of count, flavor, image, key_name, networks" {
		t.Error(got)
	}
	if got := Suggestion("counts", known); got != `did you mean "count"?` {
		t.Error(got)
	}
}
