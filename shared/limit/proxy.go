package limit

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Client returns the address of the client of a request, without its port. Each trusted proxy appends the address that
// connected to it to X-Forwarded-For. Any client can forge the entries before the last untrusted one.
func (l *Limits) Client(r *http.Request) string {
	address, ok := parseAddress(r.RemoteAddr)
	if !ok {
		return r.RemoteAddr
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for n := len(hops) - 1; n >= 0 && l.proxies.Contains(address); n-- {
		hop, ok := parseAddress(strings.TrimSpace(hops[n]))
		if !ok {
			break
		}
		address = hop
	}
	return address.String()
}

// parseAddress reads an address with or without a port.
func parseAddress(text string) (netip.Addr, bool) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	address, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return address.Unmap().WithZone(""), err == nil
}
