package httpx

import (
	"net/http"
	"testing"
)

// TestIfMatch: what proxies make of a tag that we gave is still the version.
func TestIfMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		given []string
		want  bool
	}{
		{nil, true},
		{[]string{`"3"`}, true},
		{[]string{`W/"3"`}, true},
		{[]string{`"3-gzip"`}, true},
		{[]string{`W/"3--gzip"`}, true},
		{[]string{`"1", "3"`}, true},
		{[]string{`"1"`, `W/"3"`}, true},
		{[]string{"*"}, true},
		{[]string{`"4"`}, false},
		{[]string{`W/"33"`}, false},
		{[]string{`"30-gzip"`}, false},
		{[]string{"3"}, false},
		{[]string{`"`}, false},
		{[]string{"W/"}, false},
		{[]string{","}, false},
	} {
		r := &http.Request{Header: http.Header{"If-Match": c.given}}
		if got := IfMatch(r)(3); got != c.want {
			t.Errorf("If-Match: %q matches version 3: %t, want %t", c.given, got, c.want)
		}
	}
	if v := VersionsOf(&http.Request{}, "If-None-Match"); v != nil || v.Has(0) {
		t.Errorf("without a header there are the versions %q", v)
	}
}
