// Package webhook sends events to the URLs that callers have given: CloudEvents in HTTP's binary mode, signed in the
// Standard Webhooks form, to receivers that consented by the handshake of CloudEvents' webhook specification.
//
// A URL is a stranger's. Which address a name stands for is looked at when it is connected to, so that no name service
// can change its mind in between; redirects and proxies are not followed; and what a receiver says is bounded in time
// and size, and shown to no one.
package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config is for the function that sends.
type Config struct {
	Ranges
	// Time limit of one delivery attempt.
	Timeout time.Duration `env:"CALLBACK_TIMEOUT, default=15s" min:"1s" max:"2m"`
	// DNS name of the sender, which receivers consent to.
	Origin string `env:"CALLBACK_ORIGIN, default=cloudfn"`
}

// Validate refuses a Config that cannot work.
func (c Config) Validate() error {
	if !isName(strings.ToLower(c.Origin)) {
		return fmt.Errorf("CALLBACK_ORIGIN is %q: it must be a DNS name, such as events.example.com", c.Origin)
	}
	return c.Ranges.Validate()
}

// The bounds of one attempt besides Config.Timeout.
const (
	connectTimeout = 5 * time.Second
	drainTimeout   = time.Second // to read a body, so that the connection can be reused
	maxAnswer      = 64 << 10    // of headers, and of a body
)

// requestedRate is the rate that the handshake requests: as many deliveries a minute as come in any order of use. It is
// requested because a receiver that gets a rate must name its own.
const requestedRate = 6000

// Client sends. It is safe for concurrent use and one per process.
type Client struct {
	guard   *Guard
	http    http.Client
	timeout time.Duration
	origin  string
}

// New prepares a Client, and connects to nothing yet.
func New(cfg Config) (*Client, error) { return newClient(cfg, nil, nil) }

// newClient takes the names from resolver, and trusts what tlsConfig trusts; nil is the system's.
func newClient(cfg Config, resolver *net.Resolver, tlsConfig *tls.Config) (*Client, error) {
	guard, err := NewGuard(cfg.Ranges)
	if err != nil {
		return nil, err
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	dialer := &net.Dialer{Timeout: connectTimeout, Resolver: resolver, ControlContext: guard.control}
	transport := &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    connectTimeout,
		MaxResponseHeaderBytes: maxAnswer,
		DisableCompression:     true,
		MaxIdleConns:           256,
		MaxIdleConnsPerHost:    8, // as many as deliveries to one callback concurrently
		IdleConnTimeout:        30 * time.Second,
		ForceAttemptHTTP2:      true,
		// A connection that many deliveries share is given up when nothing answers on it any more.
		HTTP2: &http.HTTP2Config{SendPingTimeout: connectTimeout, PingTimeout: connectTimeout},
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{
		guard: guard, timeout: cfg.Timeout, origin: cfg.Origin, http: http.Client{
			Transport: transport, CheckRedirect: stay,
		},
	}, nil
}

var errForbidden = errors.New("forbidden address")

type plainKey struct{}

// control decides about the address that a connection is about to be made to.
func (g *Guard) control(ctx context.Context, _, address string, _ syscall.RawConn) error {
	plain, known := ctx.Value(plainKey{}).(bool)
	addr, err := netip.ParseAddrPort(address)
	if err != nil || !known || !g.permits(addr.Addr(), plain) {
		return errForbidden
	}
	return nil
}

// Answer is what a receiver answered, as far as it counts.
type Answer struct {
	Status     int
	RetryAfter time.Duration // when the receiver wants the request again; 0 = it did not say
}

// OK reports whether the receiver has taken the event.
func (a Answer) OK() bool { return a.Status/100 == 2 }

// Gone reports whether the receiver wants no event ever again.
func (a Answer) Gone() bool { return a.Status == http.StatusGone }

// Busy reports whether the receiver requests a pause: its own word about how long is RetryAfter.
func (a Answer) Busy() bool {
	return a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable && a.RetryAfter > 0
}

// Problem is what is wrong with the answer, in our words; "" when it is OK.
func (a Answer) Problem() string {
	text := "the receiver answered " + strconv.Itoa(a.Status)
	switch {
	case a.OK():
		return ""
	case a.Gone():
		return text + ": gone"
	case a.Status/100 == 3:
		return text + ": redirects are not followed"
	case a.Status == http.StatusUnsupportedMediaType:
		return text + ": it does not take CloudEvents in binary mode"
	}
	return text
}

// Send makes one attempt to deliver the event. It is signed with each of the secrets, at least one;
// now is the time of the attempt, which receivers compare with their own clock. An error means that no answer came, in
// our words (apperr: Timeout, Unavailable, BadGateway, Forbidden for an address that is not allowed, Invalid for a URL
// that never will be); when ctx ended, it is ctx's own.
func (c *Client) Send(
	ctx context.Context, url string, secrets []domain.Secret, event cloudevents.Event, now time.Time,
) (Answer, error) {
	signature, err := sign(secrets, event.ID(), now, event.Data())
	if err != nil {
		return Answer{}, err
	}
	answer, _, err := c.do(ctx, url, func(ctx context.Context, url string) (*http.Request, error) {
		req, err := cloudevents.NewHTTPRequestFromEvent(ctx, url, event)
		if err != nil {
			return nil, apperr.New(apperr.Internal, "the event cannot be sent")
		}
		req.Header.Set("Origin", c.origin)
		req.Header.Set("Webhook-Id", event.ID())
		req.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
		req.Header.Set("Webhook-Signature", signature)
		// Sends no header. It has http.Transport try again when the receiver has closed a connection that was kept,
		// which would count as no answer; receivers know the event by its id.
		req.Header["Idempotency-Key"] = nil
		return req, nil
	})
	return answer, err
}

// Consent is what a receiver said when it was asked whether it wants events.
type Consent struct {
	Answer
	Given bool
	Rate  int // deliveries a minute that it wants at most; 0 = any
}

// Handshake asks the receiver for its consent (CloudEvents HTTP webhook 1.0, 4). Errors are as those of Send. A
// receiver that answered without consenting is no error.
func (c *Client) Handshake(ctx context.Context, url string) (Consent, error) {
	answer, header, err := c.do(ctx, url, func(ctx context.Context, url string) (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodOptions, url, nil)
		if err != nil {
			return nil, refuse("is not a URL")
		}
		req.Header.Set("Webhook-Request-Origin", c.origin)
		req.Header.Set("Webhook-Request-Rate", strconv.Itoa(requestedRate))
		return req, nil
	})
	if err != nil {
		return Consent{}, err
	}
	allowed := strings.TrimSpace(header.Get("Webhook-Allowed-Origin"))
	rate, err := strconv.Atoi(strings.TrimSpace(header.Get("Webhook-Allowed-Rate")))
	if err != nil || rate < 1 || rate > requestedRate { // "*", or nothing
		rate = 0
	}
	return Consent{
		Answer: answer, Given: answer.OK() && (allowed == "*" || strings.EqualFold(allowed, c.origin)),
		Rate: rate,
	}, nil
}

// Probe checks whether a URL serves, with GET. It is an error unless the answer is 200.
func (c *Client) Probe(ctx context.Context, url string) error {
	answer, _, err := c.do(ctx, url, func(ctx context.Context, url string) (*http.Request, error) {
		return http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	})
	if err == nil && answer.Status != http.StatusOK {
		err = apperr.New(apperr.Unavailable, "the answer is %d", answer.Status)
	}
	return err
}

// do makes one request to the receiver, and reads no more of what it says than its status and its headers.
func (c *Client) do(
	ctx context.Context, url string, build func(context.Context, string) (*http.Request, error),
) (Answer, http.Header, error) {
	u, err := c.guard.parse(url)
	if err != nil {
		return Answer{}, nil, err
	}
	attempt, cancel := context.WithTimeout(context.WithValue(ctx, plainKey{}, u.Scheme == "http"), c.timeout)
	defer cancel()
	req, err := build(attempt, u.String())
	if err != nil {
		return Answer{}, nil, err
	}
	req.Header.Set("User-Agent", "cloudfn")
	resp, err := c.http.Do(req)
	if err != nil && ctx.Err() != nil {
		return Answer{}, nil, ctx.Err()
	}
	if err != nil {
		return Answer{}, nil, noAnswer(err)
	}
	drain(resp, cancel)
	return Answer{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header, time.Now())}, resp.Header, nil
}

func drain(resp *http.Response, cancel context.CancelFunc) {
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < http.StatusOK { // 101: what follows is no body
		return
	}
	defer time.AfterFunc(drainTimeout, cancel).Stop()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
}

// maxRetryAfter bounds the pause that a receiver may request.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the header as seconds or as a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseUint(text, 10, 63); err == nil {
		return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}

// noAnswer says in our words why no answer came. The cause's own text may quote the URL or what the receiver sent, and
// is dropped.
func noAnswer(err error) error {
	var timeout net.Error
	var dns *net.DNSError
	switch {
	case errors.Is(err, errForbidden):
		return apperr.New(apperr.Forbidden, "the host's address is not allowed: "+
			"it is not public, or it is one for plain http that the operator has not allowed")
	case errors.As(err, &dns) && dns.IsNotFound:
		return apperr.New(apperr.Unavailable, "the host's name is not known")
	case errors.As(err, &dns) && !dns.IsTimeout:
		return apperr.New(apperr.Unavailable, "the host's name cannot be looked up")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return apperr.New(apperr.Timeout, "the receiver did not answer in time")
	case errors.Is(err, syscall.ECONNREFUSED):
		return apperr.New(apperr.Unavailable, "the connection was refused")
	case isTLS(err):
		return apperr.New(apperr.Unavailable, "the receiver offers no TLS with a certificate that is trusted")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err,
		syscall.EPIPE):
		return apperr.New(apperr.Unavailable, "the receiver closed the connection without an answer")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return apperr.New(apperr.Unavailable, "the receiver's host cannot be reached: no route")
	}
	return apperr.New(apperr.BadGateway, "the receiver gave no answer that makes sense")
}

func isTLS(err error) bool {
	if errors.Is(err, http.ErrSchemeMismatch) || strings.Contains(err.Error(), "tls: ") {
		return true
	}
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	return certificate || record || authority
}

// How a secret is written (https://www.standardwebhooks.com): a prefix, and 24 to 64 bytes in base64.
const (
	secretPrefix  = "whsec_"
	newSecretSize = 32
	minSecretSize = 24
	maxSecretSize = 64
)

// NewSecret makes a secret.
func NewSecret() domain.Secret {
	key := make([]byte, newSecretSize)
	_, _ = rand.Read(key) // never fails (Go 1.24)
	return domain.Secret(secretPrefix + base64.StdEncoding.EncodeToString(key))
}

// CheckSecret fails on a malformed secret. The error is for the field "secret", and does not quote it.
func CheckSecret(secret domain.Secret) error {
	_, err := keyOf(secret)
	return err
}

func keyOf(secret domain.Secret) ([]byte, error) {
	text, ok := strings.CutPrefix(secret.Reveal(), secretPrefix)
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	if !ok || err != nil || strings.ContainsAny(text, "\r\n") || len(key) < minSecretSize || len(key) > maxSecretSize {
		return nil, apperr.InvalidField("secret", fmt.Sprintf("must be %s and then %d to %d bytes in base64",
			secretPrefix,
			minSecretSize, maxSecretSize))
	}
	return key, nil
}

// sign gives one signature for each secret, separated by spaces.
func sign(secrets []domain.Secret, id string, at time.Time, body []byte) (string, error) {
	if len(secrets) == 0 {
		return "", apperr.New(apperr.Internal, "the event cannot be signed: its callback has no secret")
	}
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		key, err := keyOf(secret)
		if err != nil {
			return "", apperr.New(apperr.Internal, "the event cannot be signed: a secret of its callback is malformed")
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " "), nil
}
