package webhook

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// MaxURL is how long a callback's URL may be, in bytes.
const MaxURL = 2048

// Check refuses a URL that can never be a callback's, naming the field "url". What a name stands for is decided when
// it is connected to, each time anew: here only names and addresses that are forbidden in themselves are refused.
func (g *Guard) Check(rawURL string) error {
	_, err := g.parse(rawURL)
	return err
}

func (g *Guard) parse(rawURL string) (*url.URL, error) {
	if rawURL == "" || len(rawURL) > MaxURL {
		return nil, refuse("must have 1 to " + strconv.Itoa(MaxURL) + " bytes")
	}
	for _, c := range []byte(rawURL) {
		if c <= ' ' || c >= 0x7f || c == '\\' {
			return nil, refuse("must be ASCII without spaces: write names as xn--..., and all else as %..")
		}
	}
	u, err := url.Parse(rawURL)
	switch {
	case err != nil || u.Opaque != "":
		return nil, refuse("is not a URL")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, g.refuseScheme()
	case u.User != nil || strings.Contains(u.Host, "@"):
		return nil, refuse("must hold no user and password: the signature proves who sends")
	case strings.Contains(rawURL, "#"):
		return nil, refuse("must have no fragment")
	}
	if err := checkPort(u); err != nil {
		return nil, err
	}
	return u, g.checkHost(u)
}

func (g *Guard) refuseScheme() error {
	if len(g.allow) == 0 {
		return refuse("must begin with https://")
	}
	return refuse("must begin with https://, or with http:// for an address that the operator has allowed")
}

func checkPort(u *url.URL) error {
	port := u.Port()
	if port == "" && !strings.HasSuffix(u.Host, ":") {
		return nil
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' {
		return refuse("must have a port from 1 to 65535, or none")
	}
	return nil
}

const notPublic = "must not be an address that is not public, unless the operator has allowed it"

func (g *Guard) checkHost(u *url.URL) error {
	plain := u.Scheme == "http"
	if plain && len(g.allow) == 0 {
		return g.refuseScheme()
	}
	host := strings.ToLower(u.Hostname())
	if strings.HasPrefix(u.Host, "[") || looksNumeric(host) {
		addr, err := netip.ParseAddr(host)
		switch {
		case err != nil || addr.Zone() != "" || addr.Is4() == strings.HasPrefix(u.Host, "["):
			return refuse("must have an address as four decimal numbers or as [IPv6], or a name")
		case !g.permits(addr, plain):
			return refuse(notPublic)
		}
		return nil
	}
	if !isName(host) {
		return refuse("must have the name of a host")
	}
	name := strings.TrimSuffix(host, ".")
	loopback4, loopback6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	if (name == "localhost" || strings.HasSuffix(name, ".localhost")) && !g.permits(loopback4, plain) &&
		!g.permits(loopback6, plain) {
		return refuse(notPublic)
	}
	return nil
}

// looksNumeric reports whether some resolver may take the host for an IPv4 address: its last label is a number, in
// decimal, octal or hexadecimal (https://url.spec.whatwg.org/#ends-in-a-number-checker).
func looksNumeric(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	if digits, hex := strings.CutPrefix(last, "0x"); hex {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

// isName reports whether the host is a DNS name: labels of letters, digits, - and _. One dot may end it.
func isName(host string) bool {
	host = strings.TrimSuffix(host, ".")
	if len(host) > 253 {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

func refuse(why string) error { return apperr.InvalidField("url", why) }
