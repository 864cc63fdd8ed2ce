package domain

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Ranges are ranges of addresses.
type Ranges []netip.Prefix

// Contains reports whether the address is in one of the ranges.
func (r Ranges) Contains(address netip.Addr) bool {
	return slices.ContainsFunc(r, func(one netip.Prefix) bool { return one.Contains(address) })
}

// ParseRanges reads the address ranges of a setting. An address is the range of itself.
func ParseRanges(variable string, texts []string) (Ranges, error) {
	ranges := make(Ranges, len(texts))
	for i, text := range texts {
		r, err := parseRange(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("%s has %q: it must be a list of ranges, such as 10.1.0.0/16,fd00::/8", variable,
				text)
		}
		ranges[i] = r
	}
	return ranges, nil
}

func parseRange(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.Unmap().Prefix(addr.Unmap().BitLen()) // of an address with a zone too: zones are not looked at
	}
	r, err := netip.ParsePrefix(text)
	if err == nil && r.Addr().Is4In6() { // would hold no address: they are looked at as IPv4
		err = errors.New("IPv4 in the form of IPv6")
	}
	return r, err
}
