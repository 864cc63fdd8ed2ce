package eventx

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// SinkConfig says where the events go that this process makes. A SinkBinding of Knative's sets these variables.
type SinkConfig struct {
	// URL that receives every event, besides callbacks; a SinkBinding sets this variable, `K_CE_OVERRIDES` and
	// `K_CA_CERTS`.
	URL domain.Secret `env:"K_SINK"`
	// Extensions that events to the sink get, such as `{"extensions":{"cloud":"north"}}`.
	Overrides domain.Secret `env:"K_CE_OVERRIDES"`
	// Certificates (PEM text, not a file) that are trusted for the sink, besides the system's.
	CACerts string `env:"K_CA_CERTS"`
}

// Validate refuses a SinkConfig that cannot work. What it says quotes no value.
func (c SinkConfig) Validate() error {
	_, _, err := c.parse()
	return err
}

func (c SinkConfig) parse() (extensions map[string]string, authorities *x509.CertPool, err error) {
	u, err := url.Parse(c.URL.Reveal())
	if c.URL != "" && (err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https") {
		return nil, nil, errors.New("K_SINK is not an http or https URL, such as " +
			"http://broker-ingress.knative-eventing.svc.cluster.local/cloudfn/default")
	}
	if extensions, err = c.extensions(); err != nil {
		return nil, nil, err
	}
	authorities, err = c.authorities()
	return extensions, authorities, err
}

func (c SinkConfig) extensions() (map[string]string, error) {
	if c.Overrides == "" {
		return nil, nil //nolint:nilnil // no overrides, no extensions
	}
	var overrides struct{ Extensions map[string]string }
	if err := json.Unmarshal([]byte(c.Overrides.Reveal()), &overrides); err != nil {
		return nil, errors.New(`K_CE_OVERRIDES is not JSON of the form {"extensions":{"name":"value"}}`)
	}
	probe := cloudevents.NewEvent()
	for name, value := range overrides.Extensions {
		if err := probe.Context.SetExtension(name, value); err != nil {
			return nil, fmt.Errorf("K_CE_OVERRIDES names the extension %q: it must be letters and digits, and no "+
				"attribute "+
				"of every event", name)
		}
		if strings.ContainsFunc(value, unicode.IsControl) { // it has to fit a header
			return nil, fmt.Errorf("K_CE_OVERRIDES has a line break or another control character in the extension %q",
				name)
		}
	}
	return overrides.Extensions, nil
}

// authorities are whom a sink's certificate may come from; nil are those that the system knows.
func (c SinkConfig) authorities() (*x509.CertPool, error) {
	if c.CACerts == "" {
		return nil, nil //nolint:nilnil // no certificates of its own
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // an image without any
	}
	if !pool.AppendCertsFromPEM([]byte(c.CACerts)) {
		return nil, errors.New("K_CA_CERTS holds no certificate in PEM")
	}
	return pool, nil
}

// SendTimeout bounds the sending of one event.
const SendTimeout = 10 * time.Second

const maxSinkAnswer = 64 << 10 // of a body that is read only so that the connection can be used again

// Sink is where events go.
type Sink struct {
	url        string
	extensions map[string]string
	client     http.Client
	timeout    time.Duration
}

// NewSink prepares a Sink, and connects to nothing yet.
func NewSink(cfg SinkConfig) (*Sink, error) {
	extensions, authorities, err := cfg.parse()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{ // no proxy: a sink is an address within the cluster
		DialContext:            (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    5 * time.Second,
		MaxResponseHeaderBytes: maxSinkAnswer,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    8, // as many as one copy sends concurrently
		IdleConnTimeout:        SendTimeout,
		ForceAttemptHTTP2:      true,
	}
	// A redirect would send the extensions, which may include a key, to any host.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Sink{
		url: cfg.URL.Reveal(), extensions: extensions, timeout: SendTimeout,
		client: http.Client{Transport: transport, CheckRedirect: stay},
	}, nil
}

// Send posts the event in binary mode; nil means that the sink has taken it. Every failure may pass (a sink that
// refuses events is fixed), so that the caller can send the event again.
func (s *Sink) Send(ctx context.Context, event cloudevents.Event) error {
	event = event.Clone()
	for name, value := range s.extensions {
		event.SetExtension(name, value)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	req, err := cloudevents.NewHTTPRequestFromEvent(ctx, s.url, event)
	if err != nil {
		return apperr.Wrap(apperr.Internal, err, "the event cannot be sent")
	}
	// The id makes a repeat harmless, so a kept connection that the sink has closed meanwhile is no failure: without a
	// header on the wire, this tells net/http to try another one.
	req.Header["Idempotency-Key"] = nil
	resp, err := s.client.Do(req)
	if err != nil {
		return sinkAway(err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxSinkAnswer) // the status alone decides
	if resp.StatusCode/100 != 2 {
		return apperr.New(apperr.BadGateway, "the sink answered %d", resp.StatusCode)
	}
	return nil
}

// sinkAway is the error of a call without an answer. The text of its cause is kept when it is about the way to the
// sink. Any other may quote the URL or what the sink sent.
func sinkAway(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return apperr.New(apperr.Timeout, "the sink did not answer in time")
	}
	_, network := errors.AsType[net.Error](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	if network || certificate || errors.Is(err, http.ErrSchemeMismatch) || errors.Is(err, context.Canceled) ||
		errors.Is(err, io.EOF) {
		return apperr.Wrap(apperr.Unavailable, err, "the sink is unavailable")
	}
	return apperr.New(apperr.BadGateway, "the sink gave no answer that makes sense")
}
