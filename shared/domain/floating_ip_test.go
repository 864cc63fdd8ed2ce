package domain

import (
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// TestChooseAddresses: the only address with a router to the network, or those that may have one where routers are
// hidden. What is wrong names the candidates.
func TestChooseAddresses(t *testing.T) {
	t.Parallel()
	routed := PortAddress{PortID: "r", Address: "10.0.0.1", Route: Route{External: []string{"public"}}}
	second := PortAddress{PortID: "s", Address: "10.0.1.1", Route: Route{External: []string{"public", "other"}}}
	alone := PortAddress{PortID: "a", Address: "10.0.2.1"}
	hidden := PortAddress{PortID: "h", Address: "10.0.3.1", Route: Route{IsPartial: true}}
	also := PortAddress{PortID: "i", Address: "10.0.4.1", Route: Route{IsPartial: true}}
	for name, tc := range map[string]struct {
		all   []PortAddress
		fixed string
		want  string // ports
		code  apperr.Code
	}{
		"the only one":            {[]PortAddress{alone, hidden, routed}, "", "r", ""},
		"several":                 {[]PortAddress{routed, second}, "", "", apperr.Conflict},
		"one of several":          {[]PortAddress{routed, second}, "10.0.1.1", "s", ""},
		"hidden ones in order":    {[]PortAddress{alone, hidden, also}, "", "hi", ""},
		"no router":               {[]PortAddress{alone}, "", "", apperr.Conflict},
		"the wrong one":           {[]PortAddress{routed, alone}, "10.0.2.1", "", apperr.Conflict},
		"not an address of it":    {[]PortAddress{routed}, "10.0.9.1", "", apperr.Invalid},
		"no address":              {nil, "", "", apperr.Conflict},
		"no address as requested": {nil, "10.0.0.1", "", apperr.Conflict},
	} {
		got, err := ChooseAddresses(tc.all, "public", tc.fixed)
		var all []string
		for _, a := range got {
			all = append(all, a.PortID)
		}
		ports := strings.Join(all, "")
		if ports != tc.want || apperr.CodeOf(err) != tc.code {
			t.Errorf("%s: got %q, %v", name, ports, err)
		}
		if err != nil && len(tc.all) > 0 && !strings.Contains(err.Error()+
			strings.Join(append(allowedOf(err), ""), " "), tc.all[0].Address) {
			t.Errorf("%s: %v does not name the candidates", name, err)
		}
	}
}

func allowedOf(err error) (all []string) {
	for _, f := range apperr.As(err).Fields {
		all = append(all, f.Allowed...)
	}
	return all
}

func TestChooseExternal(t *testing.T) {
	t.Parallel()
	external := []Network{{ID: "public", Name: "Public"}, {ID: "other", Name: "Other"}}
	one, two := Route{External: []string{"public"}}, Route{External: []string{"public", "other"}}
	hidden := Route{IsPartial: true}
	for name, tc := range map[string]struct {
		route    Route
		external []Network
		want     string
		code     apperr.Code
	}{
		"the only one":       {one, external, "public", ""},
		"several":            {two, external, "", apperr.Conflict},
		"none":               {Route{}, external, "", apperr.Conflict},
		"hidden, only one":   {hidden, external[1:], "other", ""},
		"hidden, of several": {hidden, external, "", apperr.Conflict},
	} {
		got, err := ChooseExternal([]PortAddress{{Address: "10.0.0.1", Route: tc.route}}, tc.external)
		if got != tc.want || apperr.CodeOf(err) != tc.code {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
}
