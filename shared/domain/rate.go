package domain

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// AddressSource returns what counts as one source of requests: an IPv4 address, or the /56 of an IPv6 address, because
// a home has as many to choose from. Anything else is a source of its own.
func AddressSource(address string) string {
	parsed, err := netip.ParseAddr(address)
	if err != nil || parsed.Unmap().Is4() {
		return address
	}
	network, err := parsed.WithZone("").Prefix(56)
	if err != nil {
		return address
	}
	return network.String()
}

// CheckRate rejects a setting that allows no requests, or more than any process serves.
func CheckRate(variable string, n int) error {
	if n < 1 || n > 100_000 {
		return fmt.Errorf("%s is %d: it must be 1 to 100000", variable, n)
	}
	return nil
}

// CheckTime rejects a setting that is not between two durations.
func CheckTime(variable string, is, least, most time.Duration) error {
	if is < least || is > most {
		return fmt.Errorf("%s is %s: it must be %s to %s", variable, is, ShortTime(least), ShortTime(most))
	}
	return nil
}

// ShortTime is a duration as people write it: 24h, not 24h0m0s.
func ShortTime(d time.Duration) string {
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(d.String())
}
