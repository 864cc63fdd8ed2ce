package eventx

import (
	"encoding/pem"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// TestNoProxy: the sink is an address of the cluster, whatever the environment says of the world outside.
func TestNoProxy(t *testing.T) {
	proxy := serveAt(t, func(http.ResponseWriter, *http.Request) { t.Error("the proxy was called") },
		(*httptest.Server).Start)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	s := sinkAt(t, SinkConfig{URL: "http://sink.invalid/canary?canary"}) // a name that never resolves
	again(t, s.Send(t.Context(), news(t)), apperr.Unavailable)
}

// TestSinkWithACertificateOfItsOwn is believed when K_CA_CERTS says so, and only then.
func TestSinkWithACertificateOfItsOwn(t *testing.T) {
	t.Parallel()
	h, taken := receiver(t)
	server := serveAt(t, h.ServeHTTP, (*httptest.Server).StartTLS)
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	at := domain.Secret(server.URL + "/?canary")
	if err := sinkAt(t, SinkConfig{URL: at, CACerts: certificate}).Send(t.Context(), news(t)); err != nil ||
		(<-taken).ID() != news(t).ID() {
		t.Errorf("got %v", err)
	}
	err := sinkAt(t, SinkConfig{URL: at}).Send(t.Context(), news(t))
	if again(t, err, apperr.Unavailable); !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v does not say why", err)
	}
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	again(t, sinkAt(t, SinkConfig{
		URL:     domain.Secret("https://localhost:" + port),
		CACerts: certificate,
	}).Send(t.Context(), news(t)), apperr.Unavailable)
	plain := serveAt(t, h.ServeHTTP, (*httptest.Server).Start)
	again(t, sinkAt(t, SinkConfig{URL: domain.Secret(strings.Replace(plain.URL, "http:", "https:",
		1))}).Send(t.Context(), news(t)), apperr.Unavailable)
}

// TestSinkConfig: a mistake is one line that names its variable, and shows no value.
func TestSinkConfig(t *testing.T) {
	t.Parallel()
	for want, wrong := range map[string][]SinkConfig{
		"K_SINK is not an http or https URL": {
			{URL: "canary"},
			{URL: "broker.svc/canary"},
			{URL: "ftp://canary/"},
			{URL: "http://"},
			{URL: "http://:80/canary"},
			{URL: "https://canary@:443"},
			{URL: "http:canary"},
			{URL: "http://canary:%zz@x/"},
			{URL: "http://x\ncanary/"},
		},
		"K_CE_OVERRIDES is not JSON": {
			{Overrides: "canary"}, {Overrides: `{"extensions":{"canary":1}}`}, {
				Overrides: `{"extensions":["canary"]}`,
			}, {Overrides: `{} canary`},
		},
		"K_CE_OVERRIDES names the extension": {
			{Overrides: `{"extensions":{"a-b":"canary"}}`},
			{Overrides: `{"extensions":{"":"canary"}}`},
			{Overrides: `{"extensions":{"a\nb":"canary"}}`},
			{Overrides: `{"extensions":{"type":"canary"}}`},
			{Overrides: `{"extensions":{"SpecVersion":"canary"}}`},
		},
		"K_CE_OVERRIDES has a line break": {
			{Overrides: `{"extensions":{"a":"canary\r\nX: canary"}}`}, {
				Overrides: `{"extensions":{"a":"canary\u0000"}}`,
			},
		},
		"K_CA_CERTS holds no certificate": {
			{CACerts: "canary"}, {CACerts: "-----BEGIN CERTIFICATE-----\ncanary\n-----END CERTIFICATE-----\n"},
		},
	} {
		for _, cfg := range wrong {
			err := cfg.Validate()
			if err == nil || !strings.HasPrefix(err.Error(), want) || strings.ContainsAny(err.Error(), "\n") ||
				strings.Contains(err.Error(), "canary") {
				t.Errorf("%q %q: got %v, want %q", cfg.URL.Reveal(), cfg.Overrides.Reveal(), err, want)
			}
			if _, again := NewSink(cfg); again == nil || again.Error() != err.Error() {
				t.Errorf("NewSink says %v", again)
			}
		}
	}
	for _, right := range []SinkConfig{
		{},
		{URL: "http://broker-ingress.knative-eventing.svc.cluster.local/ns/default"},
		{URL: "https://[::1]:8443"},
		{Overrides: `{}`},
		{Overrides: `{"extensions":null}`},
		{Overrides: `{"extensions":{"A1":"x"},"more":1}`},
	} {
		if err := right.Validate(); err != nil {
			t.Errorf("%q %q: %v", right.URL.Reveal(), right.Overrides.Reveal(), err)
		}
	}
	extensions, err := SinkConfig{Overrides: `{"extensions":{"a":"1","b":"2"}}`}.extensions()
	if err != nil || !maps.Equal(extensions, map[string]string{"a": "1", "b": "2"}) {
		t.Errorf("got %v %v", extensions, err)
	}
}
