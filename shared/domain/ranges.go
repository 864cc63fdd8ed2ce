package domain

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ParseRanges reads the address ranges of a setting. An address is the range of itself.
func ParseRanges(variable string, texts []string) ([]netip.Prefix, error) {
	ranges := make([]netip.Prefix, len(texts))
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
