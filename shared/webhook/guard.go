package webhook

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Ranges say where callbacks may go besides the rules for everybody. CALLBACK_DENY goes before CALLBACK_ALLOW.
type Ranges struct {
	// Address ranges that callbacks may use although they are not public, such as `10.1.0.0/16,fd00:1::/32`; plain
	// http is allowed only there.
	Allow []string `env:"CALLBACK_ALLOW"`
	// Address ranges that callbacks may not use although they are public, such as those of the cluster; takes
	// precedence over `CALLBACK_ALLOW`.
	Deny []string `env:"CALLBACK_DENY"`
}

// Validate refuses Ranges that cannot work.
func (r Ranges) Validate() error {
	_, err := NewGuard(r)
	return err
}

// StatusRanges say where the status URLs of nodes may be. They are not CALLBACK_ALLOW, which is for what tenants name.
type StatusRanges struct {
	// Address ranges that status URLs of nodes may use although they are not public, such as `10.1.0.0/16`; plain http
	// is allowed only there.
	Allow []string `env:"NODES_STATUS_ALLOW"`
	// Address ranges that status URLs of nodes may not use although they are public; takes precedence over
	// `NODES_STATUS_ALLOW`.
	Deny []string `env:"NODES_STATUS_DENY"`
}

// Validate refuses StatusRanges that cannot work.
func (r StatusRanges) Validate() error {
	_, err := domain.ParseRanges("NODES_STATUS_ALLOW", r.Allow)
	_, denied := domain.ParseRanges("NODES_STATUS_DENY", r.Deny)
	return errors.Join(err, denied)
}

// Quota is how many callbacks a project may have.
type Quota struct {
	// Callbacks of one project, those of its orders and instances included; those that are `gone` do not count.
	PerProject int `env:"CALLBACKS_PER_PROJECT, default=100000" min:"1"`
}

// Guard decides which URLs and addresses a callback may have.
type Guard struct{ allow, deny domain.Ranges }

// NewGuard reads the ranges.
func NewGuard(r Ranges) (*Guard, error) {
	allow, err := domain.ParseRanges("CALLBACK_ALLOW", r.Allow)
	if err != nil {
		return nil, err
	}
	deny, err := domain.ParseRanges("CALLBACK_DENY", r.Deny)
	return &Guard{allow: allow, deny: deny}, err
}

// permits reports whether a callback may connect to the address. plain reports whether it would do so without TLS.
func (g *Guard) permits(addr netip.Addr, plain bool) bool {
	addr = addr.Unmap().WithZone("")
	if inner, ok := throughNAT64(addr); ok && !g.permits(inner, plain) {
		return false
	}
	switch {
	case g.deny.Contains(addr):
		return false
	case g.allow.Contains(addr):
		return true
	}
	return !plain && public(addr)
}

var (
	// https://www.iana.org/assignments/iana-ipv4-special-registry and multicast.
	special4 = prefixes(
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
		"192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
		"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"168.63.129.16/32", // Azure's host agent, at a public address
	)
	// What is public of IPv6 is within 2000::/3, and so not loopback, link-local, unique-local, multicast, IPv4 in
	// another coat (::/96, 64:ff9b:1::/48) or a cloud's metadata (fd00:ec2::254).
	global6 = prefixes("2000::/3", nat64)
	// https://www.iana.org/assignments/iana-ipv6-special-registry, as far as it is within: Teredo, benchmarks and other
	// protocols' own, documentation, 6to4.
	special6 = prefixes("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)

// nat64 is how a network with IPv6 only reaches IPv4 (RFC 6052): the last four bytes are the address.
const nat64 = "64:ff9b::/96"

func prefixes(texts ...string) domain.Ranges {
	list := make(domain.Ranges, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

func public(addr netip.Addr) bool {
	if addr.Is4() {
		return !special4.Contains(addr)
	}
	return global6.Contains(addr) && !special6.Contains(addr)
}

func throughNAT64(addr netip.Addr) (netip.Addr, bool) {
	if !netip.MustParsePrefix(nat64).Contains(addr) {
		return netip.Addr{}, false
	}
	bytes := addr.As16()
	return netip.AddrFrom4([4]byte(bytes[12:])), true
}

// MaxURL is how long a callback's URL may be, in bytes.
const MaxURL = 2048

// Check refuses a URL that can never be a callback's, naming the field "url". What a name stands for is decided when
// it is connected to, each time again: here only names and addresses that are forbidden in themselves are refused.
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
