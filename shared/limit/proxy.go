package limit

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// proxies are the address ranges whose X-Forwarded-For is trusted.
type proxies []netip.Prefix

func (p proxies) contains(address netip.Addr) bool {
	for _, network := range p {
		if network.Contains(address) {
			return true
		}
	}
	return false
}

// Client returns the address of the client of a request, without its port. Each trusted proxy appends the address that
// connected to it to X-Forwarded-For. Any client can forge the entries before the last untrusted one.
func (l *Limits) Client(r *http.Request) string {
	address, ok := parseAddress(r.RemoteAddr)
	if !ok {
		return r.RemoteAddr
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for n := len(hops) - 1; n >= 0 && l.proxies.contains(address); n-- {
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
