package main

import (
	"strings"
	"testing"
)

// TestReport: a vulnerable module that is called is an error, and so is a vulnerable Go.
func TestReport(t *testing.T) {
	t.Parallel()
	const (
		progress = `{"progress": {"message": "Scanning"}}` + "\n"
		uncalled = `{"finding": {"osv": "GO-1", "trace": [{"module": "example.com/a", "version": "v1.0.0"}]}}` + "\n"
		called   = `{"finding": {"osv": "GO-2", "fixed_version": "v1.0.1", "trace": [
{"module": "example.com/a", "version": "v1.0.0", "package": "example.com/a", "function": "F"},
{"module": "cloudfn", "package": "cloudfn/functions", "function": "main"}]}}` + "\n"
		old = `{"finding": {"osv": "GO-3", "fixed_version": "v1.26.9", "trace": [
{"module": "stdlib", "version": "v1.26.8", "package": "net/http", "function": "Serve"}]}}` + "\n"
		older = `{"finding": {"osv": "GO-4", "fixed_version": "v1.26.10", "trace": [
{"module": "stdlib", "version": "v1.26.8", "package": "net/http", "function": "Serve"}]}}` + "\n"
	)
	for name, tc := range map[string]struct {
		text string
		fail bool
		want string
	}{
		"none":       {text: progress, want: "the modules and go1.26.8 have no known vulnerability"},
		"not called": {text: progress + uncalled, want: "the modules and go1.26.8 have no known vulnerability"},
		"called": {
			text: called + called, fail: true,
			want: "GO-2: example.com/a@v1.0.0, fixed in v1.0.1, called by cloudfn/functions.main",
		},
		"Go": {
			text: old + older, fail: true,
			want: "2 vulnerabilities that the binaries reach (GO-3, GO-4): set the toolchain of go.mod to go1.26.10 or",
		},
		"Go, the older last": {text: older + old, fail: true, want: "go1.26.10 or later"},
		"both":               {text: older + called, fail: true, want: "GO-2"},
		"a broken off write": {text: `{"finding"`, fail: true},
	} {
		var out strings.Builder
		found, err := read(strings.NewReader(tc.text))
		if err == nil {
			err = found.report(&out, "v0", "go1.26.8")
		}
		if (err != nil) != tc.fail || !strings.Contains(out.String(), tc.want) ||
			strings.Count(out.String(), "GO-2") > 1 {
			t.Errorf("%s: got %v, %s", name, err, out.String())
		}
	}
}
