package webhook

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
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

// forbiddenAddresses are addresses of every range that a callback must not reach, in forms that Go can parse.
func forbiddenAddresses() []string {
	list := []string{
		"::", "::1", "::2", "fe80::1", "fe80::1%lo", "febf::1", "fec0::1", "feff::1", "fc00::1", "fd00::1",
		"fdff:ffff::1", "fd00:ec2::254", "fd20:ce::254",
		"ff02::1", "ff0e::1", "100::1", "2001::1", "2001:0:7f00:1::1", "2001:2::1", "2001:10::1", "2001:20::1",
		"2001:db8::1", "3fff::1", "5f00::1",
		"64:ff9b:1::7f00:1", "64:ff9b:1::808:808", "2620:4f:8000::1", "4000::1", "1fff::1",
		"168.63.129.16", "100.100.100.200", "192.0.0.192", "255.255.255.255",
	}
	for _, ip := range []string{
		"0.0.0.0", "0.0.0.1", "0.255.255.255", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255",
		"127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.255",
		"169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1",
		"192.88.99.1", "192.168.0.1", "192.168.255.255",
		"198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
		"254.1.2.3",
	} {
		b := netip.MustParseAddr(ip).As4()
		hex := fmt.Sprintf("%x:%x", int(b[0])<<8|int(b[1]), int(b[2])<<8|int(b[3]))
		list = append(list, ip, "::ffff:"+ip, "64:ff9b::"+ip, "64:ff9b::"+hex, "::"+hex, "2002:"+hex+"::1",
			"::ffff:0:"+ip)
	}
	return list
}

// spellings are URLs that some parser or resolver takes for a forbidden address.
func spellings(port string) []string {
	var list []string
	for _, text := range forbiddenAddresses() {
		if strings.Contains(text, ":") {
			text = "[" + strings.ReplaceAll(text, "%", "%25") + "]"
		}
		list = append(list, "https://"+text+":"+port+"/")
	}
	hosts := []string{
		// 127.0.0.1 as inet_aton reads it
		"2130706433", "0x7f000001", "0X7F000001", "017700000001", "0x7f.1", "0x7f.0.0.1", "0177.0.0.1", "0177.1",
		"127.1", "127.0.1", "0127.0.0.1", "127.0.0.01",
		"127.000.000.001", "0x7f.0x0.0x0.0x1", "0x7F.0.1", "127.0x1", "00000000177.0.0.1", "127.0.0.1.", "127.1.",
		"2130706433.", "0", "0x0", "00", "0.0", "0.0.0", "0.0.0.0.",
		"4294967295", "-1", "6425673729", "127.0.0.257", "127.0.0.1:80", "127.00000.0.1",
		// 169.254.169.254
		"2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "169.16689662", "0xA9.0xFE.0xA9.0xFE",
		"0251.254.169.254", "025177524776",
		// IPv6 written out, in capitals, in brackets that it needs or does not
		"[0:0:0:0:0:0:0:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::0001]", "[0::1]", "[::FFFF:127.0.0.1]",
		"[::ffff:7f00:1]", "[::FFFF:7F00:0001]", "[0:0:0:0:0:ffff:127.0.0.1]",
		"[::127.0.0.1]", "[::7f00:1]", "[::1%25lo]", "[::1%25]", "[::1%251]", "[::1%2525lo]",
		"[::ffff:127.0.0.1%25lo]", "[127.0.0.1]", "[localhost]", "::1", "[[::1]]", "[::1].", "[::1", "::1]",
		"[FE80::1%25eth0]", "[FD00:EC2::254]", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]",
		"[64:ff9b::a9fe:a9fe]", "[0064:FF9B::7F00:0001]", "[2002:7f00:1::]",
		// names that stand for it, as the name service below says
		"localhost", "LOCALHOST", "LocalHost", "localhost.", "a.localhost", "a.b.LocalHost.", "localhost.localdomain",
		"ip6-localhost", "ip6-loopback", "loopback", "broadcasthost",
		"127.0.0.1.nip.io", "127-0-0-1.sslip.io", "7f000001.nip.io", "169.254.169.254.nip.io", "localtest.me",
		"lvh.me", "vcap.me", "spoofed.burpcollaborator.net",
		"metadata", "metadata.google.internal", "METADATA.google.internal.", "instance-data", "kubernetes.default.svc",
		"kubernetes.default.svc.cluster.local", "host.docker.internal",
		"xn--127-0-0-1.example", "a_b", "-", "_", "a-.example", "0x.example", "1e100.example", "v6.example",
		"both.example", "mapped.example",
		// letters that some parser folds
		"127。0。0。1", "127．0．0．1", "１２７.0.0.1", "①②⑦.⓪.⓪.①",
		"ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "ｌｏｃａｌｈｏｓｔ",
		"loc\u00adalhost",
		"l\u200bocalhost", "locaſhost", "127.0.0.1\u3002", "٠١٢٧.0.0.1", "[：：1]",
		// escapes
		"%31%32%37.0.0.1", "127%2e0%2e0%2e1", "127.0.0.1%2f", "127.0.0.1%00", "127.0.0.1%09",
		"%6c%6f%63%61%6c%68%6f%73%74", "localhost%2e", "127.0.0.1%20", "%5b::1%5d",
		// users that look like hosts
		"example.com@127.0.0.1", "example.com:443@127.0.0.1", "example.com%40127.0.0.1", "user:pass@localhost",
		"@127.0.0.1", ":@127.0.0.1", "example.com@@127.0.0.1", "127.0.0.1@localhost",
		"a@[::1]", "example.com:x@127.1",
		// bytes that some parser drops or takes for another
		"127.0.0.1\t", "\t127.0.0.1", "127.0\n.0.1", "127.0.0.1\r", "local\thost", "example.com\\@127.0.0.1",
		"127.0.0.1\\", "127.0.0.1;x", "127.0.0.1,example.com", "127.0.0.1 example.com",
		"example.com#@127.0.0.1", "example.com?@127.0.0.1", "*", "{127.0.0.1}", "<127.0.0.1>", "(localhost)",
		"127.0.0.1'", "\"127.0.0.1\"", "$host", "!localhost",
	}
	for _, host := range hosts {
		list = append(list, "https://"+host+":"+port+"/", "http://"+host+":"+port+"/")
	}
	for _, form := range []string{
		"https:127.0.0.1:%s", "https:/127.0.0.1:%s/", "https:///127.0.0.1:%s/", "https:\\\\127.0.0.1:%s\\",
		"//127.0.0.1:%s/", "127.0.0.1:%s", "HTTP://127.0.0.1:%s/", "hTTps://127.0.0.1:%s/",
		"https://127.0.0.1:0%s/", "https://127.0.0.1:+%s/", " https://127.0.0.1:%s/", "https ://127.0.0.1:%s/",
		"url:https://127.0.0.1:%s/", "ftp://127.0.0.1:%s/", "gopher://127.0.0.1:%s/_x",
		"dict://127.0.0.1:%s/", "ldap://127.0.0.1:%s/", "ws://127.0.0.1:%s/", "wss://127.0.0.1:%s/",
		"file://127.0.0.1:%s/", "unix://127.0.0.1:%s/", "jar:https://127.0.0.1:%s/", "https+unix://127.0.0.1:%s/",
	} {
		list = append(list, fmt.Sprintf(form, port))
	}
	return list
}

// TestNoConnection: no spelling of a forbidden address is connected to, when it is requested as it is, and when all
// that reads the URL is left out, so that only the look at the address is left. Names are served by a name service that
// finds 127.0.0.1 and ::1 behind each.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	port, connections := listeners(t)
	client := testClient(t, Config{Timeout: 2 * time.Second}, nameService(t, everythingIsLoopback))
	urls := spellings(port)
	for _, text := range urls {
		if _, err := client.Handshake(t.Context(), text); err == nil {
			t.Errorf("%q was answered", text)
		}
		if _, err := client.Send(t.Context(), text, []domain.Secret{NewSecret()}, anEvent(1), time.Now()); err == nil {
			t.Errorf("%q took an event", text)
		}
		for _, plain := range []bool{false, true} {
			ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), plainKey{}, plain), 2*time.Second)
			if req, err := http.NewRequestWithContext(ctx, http.MethodOptions, text, nil); err == nil {
				if resp, err := client.http.Do(req); err == nil {
					resp.Body.Close()
					t.Errorf("%q was answered with %d", text, resp.StatusCode)
				}
			}
			cancel()
		}
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("%d connections were made", n)
	}
	t.Logf("%d spellings", len(urls))
	// The listeners would have got them.
	for _, host := range []string{"127.0.0.1", "[::1]", "any.example"} {
		open := testClient(t, Config{Timeout: 2 * time.Second, Ranges: Ranges{Allow: []string{"127.0.0.0/8", "::1"}}},
			nameService(t, everythingIsLoopback))
		before := connections.Load()
		if _, err := open.Handshake(t.Context(), "http://"+host+":"+port); err == nil || connections.Load() == before {
			t.Errorf("%s, allowed: %v, %d connections", host, err, connections.Load()-before)
		}
	}
}

// TestRebinding: a name that stands for an allowed address at one moment and for a forbidden one at the next.
func TestRebinding(t *testing.T) {
	t.Parallel()
	port, connections := listeners(t)
	allowed, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	var served atomic.Int64
	receiver := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.Header().Set("Connection", "close") // each attempt looks the name up again
	})}
	go receiver.Serve(allowed)
	t.Cleanup(func() { receiver.Close() })

	var turn atomic.Int64
	good, bad := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")
	client := testClient(t, Config{Timeout: 2 * time.Second, Ranges: Ranges{Allow: []string{"127.0.0.2"}}},
		nameService(t, func(name string) []netip.Addr {
			switch {
			case strings.HasPrefix(name, "both"):
				return []netip.Addr{bad, good}
			case turn.Add(1)%3 == 0: // each lookup queries twice, for IPv4 and IPv6, in any order
				return []netip.Addr{bad, netip.IPv6Loopback()}
			}
			return []netip.Addr{good}
		}))
	var forbidden int
	for i := range 20 {
		answer, err := client.Handshake(t.Context(), "http://rebind.example:"+port)
		switch {
		case apperr.CodeOf(err) == apperr.Forbidden:
			forbidden++
		case err != nil || answer.Status != 200:
			t.Errorf("attempt %d: %v %v", i, answer, err)
		}
	}
	if forbidden == 0 || served.Load() == 0 || connections.Load() != 0 {
		t.Errorf("%d forbidden, %d served, %d connections to the forbidden address", forbidden, served.Load(),
			connections.Load())
	}
	if answer, err := client.Handshake(t.Context(), "http://both.example:"+port); err != nil || answer.Status != 200 ||
		connections.Load() != 0 {
		t.Errorf("of both addresses the allowed one is to be taken: %v %v", answer, err)
	}
}

// TestRedirectsAreNotFollowed, wherever they go.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	port, connections := listeners(t)
	var to atomic.Value
	var requests atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		target, _ := to.Load().(string)
		w.Header().Set("Location", target)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}))
	t.Cleanup(receiver.Close)
	client := testClient(t, Config{Timeout: 2 * time.Second, Ranges: Ranges{Allow: []string{"127.0.0.1"}}}, nil)
	targets := []string{
		"http://127.0.0.1:" + port, "http://[::1]:" + port, "//127.0.0.1:" + port, receiver.URL + "/again", "/", "",
	}
	for i, target := range targets {
		to.Store(target)
		answer, err := client.Send(t.Context(), receiver.URL, []domain.Secret{NewSecret()}, anEvent(1), time.Now())
		if err != nil || answer.Status != 307 || answer.OK() ||
			!strings.Contains(answer.Problem(), "redirects are not followed") {
			t.Errorf("%s: %+v %v", target, answer, err)
		}
		if connections.Load() != 0 || requests.Load() != int64(i+1) {
			t.Errorf("%s: it was followed", target)
		}
	}
}

// listeners count what connects to one port of 127.0.0.1 and of ::1, and answer nothing.
func listeners(t *testing.T) (port string, connections *atomic.Int64) {
	t.Helper()
	connections = &atomic.Int64{}
	port = "0"
	for _, host := range []string{"127.0.0.1", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		_, port, _ = net.SplitHostPort(l.Addr().String())
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				connections.Add(1)
				conn.Close()
			}
		}()
	}
	return port, connections
}

func everythingIsLoopback(string) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback(), netip.MustParseAddr("::ffff:127.0.0.1")}
}
