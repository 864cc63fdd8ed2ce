package webhook

import (
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

func guard(t testing.TB, allow, deny string) *Guard {
	t.Helper()
	list := func(text string) []string {
		if text == "" {
			return nil
		}
		return strings.Split(text, ",")
	}
	g, err := NewGuard(Ranges{Allow: list(allow), Deny: list(deny)})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestPermits(t *testing.T) {
	t.Parallel()
	open := guard(t, "", "")
	for _, text := range []string{
		"1.1.1.1", "8.8.8.8", "93.184.216.34", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.1",
		"172.15.255.255",
		"172.32.0.0", "192.0.1.0", "198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700::1111", "2a00::1",
		"2001:200::1",
		"::ffff:8.8.8.8", "64:ff9b::808:808", "168.63.129.15",
	} {
		if addr := netip.MustParseAddr(text); !open.permits(addr, false) {
			t.Errorf("%s is public, and forbidden", text)
		} else if open.permits(addr, true) {
			t.Errorf("%s may be reached without TLS", text)
		}
	}
	for _, text := range forbiddenAddresses() {
		if open.permits(netip.MustParseAddr(text), false) {
			t.Errorf("%s is permitted", text)
		}
	}
	some := guard(t, "10.1.0.0/16, fd00:1::/32,169.254.9.9,::ffff:10.9.9.9",
		"10.1.9.0/24,203.0.114.0/24,2606:4700::/32")
	for text, want := range map[string]bool{
		"10.1.2.3": true, "10.2.2.3": false, "::ffff:10.1.2.3": true, "fd00:1::1": true, "fd00:2::1": false,
		"fd00:1::1%eth0": true,
		"169.254.9.9":    true, "169.254.9.8": false, "10.9.9.9": true, "10.1.9.1": false, "::ffff:10.1.9.1": false,
		"203.0.114.1": false, "203.0.115.1": true, "2606:4700::1": false, "64:ff9b::cb00:7201": false,
		"64:ff9b::cb00:7301": true,
	} {
		if got := some.permits(netip.MustParseAddr(text), false); got != want {
			t.Errorf("%s: permitted is %t", text, got)
		}
	}
	if !some.permits(netip.MustParseAddr("10.1.2.3"), true) || some.permits(netip.MustParseAddr("203.0.115.1"), true) {
		t.Error("plain http goes to allowed addresses, and to no other")
	}
}

func TestRangesThatCannotWork(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"10.0.0.0/33", "example.com", "10.0.0", "*", "10.0.0.1-10.0.0.9", " ", "::ffff:10.0.0.0/104",
	} {
		for variable, r := range map[string]Ranges{
			"CALLBACK_ALLOW": {Allow: []string{text}}, "CALLBACK_DENY": {Deny: []string{text}},
		} {
			if err := r.Validate(); err == nil || !strings.Contains(err.Error(), variable) {
				t.Errorf("%s=%q: %v", variable, text, err)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	open, local := guard(t, "", ""), guard(t, "127.0.0.0/8,10.0.0.0/8", "")
	for _, text := range []string{
		"https://example.com", "https://example.com/", "HTTPS://Example.COM:8443/a/b?c=d&e=%20",
		"https://example.com./x", "https://1.1.1.1/x",
		"https://[2606:4700::1111]:443/", "https://xn--bcher-kva.example/", "https://a_b.example.com",
		"https://1.example", "https://0x.example",
		"https://example.com/@x", "https://example.com?x=http://127.0.0.1", "https://intern",
		"https://example.com/" + strings.Repeat("a", MaxURL-20),
		"https://0xg.0xzz", "https://deadbeef",
	} {
		if err := open.Check(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{
		"http://127.0.0.1:8080/x", "http://10.0.0.1", "http://receiver.example:80/", "https://localhost/",
		"http://localhost:1", "https://1.1.1.1",
	} {
		if err := local.Check(text); err != nil {
			t.Errorf("%s, which the operator allows: %v", text, err)
		}
	}
	if err := local.Check("http://1.1.1.1"); err == nil {
		t.Error("plain http to a public address was taken")
	}
	for _, text := range []string{
		"", "example.com", "//example.com", "ftp://example.com", "file:///etc/passwd", "https:", "https://",
		"https:///x", "https:example.com", "https://:443/",
		"http://example.com/", "https://u@example.com", "https://u:p@example.com", "https://@example.com",
		"https://example.com#", "https://example.com/#a",
		"https://example.com:0", "https://example.com:", "https://example.com:65536", "https://example.com:x",
		"https://example.com:0443", "https://example.com:-1",
		"https://exa mple.com", "https://example.com/ ", " https://example.com", "https://example.com/\n",
		"https://example.com/\x00", "https://example.com\\@127.0.0.1",
		"https://bücher.example", "https://%65xample.com", "https://ex%2eample.com", "https://.example.com",
		"https://a..example.com", "https://example..", "https://*.example.com",
		"https://" + strings.Repeat("a", 64) + ".example", "https://" + strings.Repeat("a.", 127) + "example",
		"https://[2606:4700::1111", "https://2606:4700::1111/", "https://[2606:4700::1111%25eth0]/",
		"https://[1.1.1.1]/", "https://[v1.a]/", "https://1.1.1.1./", "https://1.1.1", "https://0x1.1.1.1",
		"https://01.1.1.1", "https://16843009", "https://256.1.1.1", "https://1.1.1.1.1", "https://example.1",
		"https://example.com/" + strings.Repeat("a", MaxURL-19), "javascript:alert(1)", "gopher://example.com",
		"https://example.com,127.0.0.1/", "https://(example)", "https://example.com;x",
	} {
		err := open.Check(text)
		if e := apperr.As(err); err == nil || e.Code != apperr.Invalid || len(e.Fields) != 1 ||
			e.Fields[0].Field != "url" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzCheck: what Check takes is an https URL without a user to a name, or to an address that is permitted.
func FuzzCheck(f *testing.F) {
	for _, text := range spellings("443") {
		f.Add(text)
	}
	f.Add("https://example.com:8443/a?b")
	f.Add("https://[2606:4700::1111]/")
	g := guard(f, "", "")
	f.Fuzz(func(t *testing.T, text string) {
		if g.Check(text) != nil {
			return
		}
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "https" || u.User != nil || u.Fragment != "" || u.Hostname() == "" ||
			len(text) > MaxURL {
			t.Fatalf("%q was taken", text)
		}
		addr, err := netip.ParseAddr(u.Hostname())
		if err == nil && !g.permits(addr, false) {
			t.Fatalf("%q was taken, and %s is forbidden", text, addr)
		}
		if err != nil && (!isName(strings.ToLower(u.Hostname())) || looksNumeric(strings.ToLower(u.Hostname()))) {
			t.Fatalf("%q was taken, and its host is no name", text)
		}
	})
}

// TestSchemes says which schemes a URL may have.
func TestSchemes(t *testing.T) {
	t.Parallel()
	const plain = "must begin with https://, or with http:// for an address that the operator has allowed"
	for _, tc := range []struct{ allow, url, says string }{
		{"", "http://example.com/", "must begin with https://"},
		{"", "ftp://example.com/", "must begin with https://"},
		{"10.1.0.0/16", "ftp://example.com/", plain},
		{"10.1.0.0/16", "http://example.com/", ""}, // its addresses decide, at each connection
	} {
		err := guard(t, tc.allow, "").Check(tc.url)
		if (err == nil) != (tc.says == "") || err != nil && !strings.HasSuffix(err.Error(), tc.says) {
			t.Errorf("%s with %q: %v", tc.url, tc.allow, err)
		}
	}
}
