package httpx

import (
	"slices"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

var offered = []string{"application/json", "image/svg+xml", "text/html"}

func TestNegotiate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		accept []string
		want   string // "" is 406
	}{
		"nothing said":     {nil, "application/json"},
		"empty":            {[]string{""}, "application/json"},
		"white space":      {[]string{"  "}, "application/json"},
		"anything":         {[]string{"*/*"}, "application/json"},
		"one":              {[]string{"image/svg+xml"}, "image/svg+xml"},
		"in upper case":    {[]string{"TEXT/HTML"}, "text/html"},
		"with a parameter": {[]string{"text/html;charset=utf-8"}, "text/html"},
		"a family":         {[]string{"image/*"}, "image/svg+xml"},
		"a browser": {
			[]string{"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"},
			"text/html",
		},
		"an img of a browser": {
			[]string{"image/avif,image/webp,image/svg+xml,image/*;q=0.8,*/*;q=0.5"}, "image/svg+xml",
		},
		"curl":                      {[]string{"*/*"}, "application/json"},
		"weighed":                   {[]string{"application/json;q=0.5, text/html;q=0.6"}, "text/html"},
		"equals: the first offered": {[]string{"text/html, application/json"}, "application/json"},
		"several headers":           {[]string{"text/plain", "text/html"}, "text/html"},
		"anything but":              {[]string{"application/json;q=0, */*"}, "image/svg+xml"},
		"the precise decides": {
			[]string{"*/*, text/*;q=0.9, application/json;q=0.1, image/*;q=0.2"}, "text/html",
		},
		"nothing that there is": {[]string{"text/plain"}, ""},
		"nothing at all":        {[]string{"*/*;q=0"}, ""},
		"refused by name":       {[]string{"text/html;q=0"}, ""},
		"garbage":               {[]string{";;;,,,/"}, ""},
		"garbage and one":       {[]string{"///, text/html"}, "text/html"},
		"no number":             {[]string{"text/html;q=x, application/json;q=0.1"}, "application/json"},
		"not a weight":          {[]string{"text/html;q=NaN, application/json;q=0.1"}, "application/json"},
		"below nothing":         {[]string{"text/html;q=-1, application/json;q=0.1"}, "application/json"},
		// no weight at all (RFC 9110, 12.4.2)
		"more than all": {[]string{"text/html;q=5, application/json;q=0.1"}, "application/json"},
		"infinite":      {[]string{"text/html;q=Inf, application/json;q=0.1"}, "application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := with("")
			r.Header["Accept"] = tc.accept
			got, err := Negotiate(r, offered...)
			if got != tc.want {
				t.Errorf("got %q %v", got, err)
			}
			if e := apperr.As(err); tc.want == "" && (e.Code != apperr.NotAcceptable ||
				!slices.Equal(e.Fields[0].Allowed, offered)) {
				t.Errorf("got %v %+v", err, e.Fields)
			}
		})
	}
}

// FuzzNegotiate holds it to its word: one of what is offered or 406, and qualities from 0 to 1.
func FuzzNegotiate(f *testing.F) {
	for _, seed := range []string{
		"", "*/*", "text/html;q=0.5, */*;q=0.1", "a/b;c=\"d,e\"", ";q=", "text/html;q=1e309", "image/*;q=-0",
		"text/html;q=0.3;q=0.4",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, accept string) {
		r := with("")
		r.Header.Set("Accept", accept)
		got, err := Negotiate(r, offered...)
		if err == nil && !slices.Contains(offered, got) || err != nil && apperr.CodeOf(err) != apperr.NotAcceptable {
			t.Errorf("got %q %v", got, err)
		}
		for _, kind := range offered {
			if q := quality(accept, kind); !(q >= 0 && q <= 1) {
				t.Errorf("%s has quality %v", kind, q)
			}
		}
	})
}
