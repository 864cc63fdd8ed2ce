package httpx

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// KeyedRequests stores requests with an Idempotency-Key; postgres.KeyedRequests does.
type KeyedRequests interface {
	Begin(ctx context.Context, request domain.KeyedRequest, claimFor time.Duration) (domain.KeyedRequest, error)
	Finish(ctx context.Context, request domain.KeyedRequest, response []byte) error
	Abandon(ctx context.Context, request domain.KeyedRequest) error
	Release(ctx context.Context, request domain.KeyedRequest) error
}

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed"

	// Length of a key. It encrypts the stored response, which may have a secret: a short one could be guessed.
	minKey, maxKey = 16, 255
)

// SendOnce keeps http.Transport from sending a request with an Idempotency-Key again when a connection breaks: it looks
// the header up by its canonical name. To the receiver the case is the same.
func SendOnce(h http.Header) {
	h.Del("X-" + keyHeader)
	if given, ok := h[keyHeader]; ok {
		delete(h, keyHeader)
		h[strings.ToLower(keyHeader)] = given
	}
}

// Idempotent has an operation take an Idempotency-Key: a request that is sent again with its key gets the response of
// the first one. What the operation makes must have the id of domain.AttemptFrom, so that an attempt after a replica
// has died finds it.
func Idempotent(op huma.Operation) huma.Operation {
	op.Metadata = map[string]any{keyHeader: true}
	return op
}

func isIdempotent(op *huma.Operation) bool { return op.Metadata[keyHeader] != nil }

// keys is what an operation needs to handle an Idempotency-Key.
type keys struct {
	store KeyedRequests
	who   domain.Identity
}

type keysKey struct{}

// readKey takes in the key of a request, with or without the quotes of a structured field.
func (c *call) readKey() {
	given := c.request.Header.Values(keyHeader)
	if len(given) == 0 {
		return
	}
	key := given[0]
	if unquoted, isQuoted := strings.CutPrefix(key, `"`); isQuoted && strings.HasSuffix(unquoted, `"`) {
		key = strings.TrimSuffix(unquoted, `"`)
	}
	isPlain := !strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
	if len(given) > 1 || len(key) < minKey || len(key) > maxKey || !isPlain {
		c.faults = append(c.faults, apperr.Field{
			Field: keyHeader, Detail: "must be one key of 16 to 255 printable characters, such as a UUID",
		})
		return
	}
	c.key = key
}

// secrets are what is derived from an Idempotency-Key. It is stored nowhere: without it no one can read a stored
// response, nor guess what was in the request.
type secrets struct {
	id, mac []byte
	aead    cipher.AEAD
}

func deriveSecrets(who domain.Identity, key string) (s secrets, err error) {
	salt := sha256.Sum256([]byte(who.ProjectID + "\x00" + who.UserID))
	var derived [3][]byte
	for n, use := range []string{"id", "request", "response"} {
		derived[n], err = hkdf.Key(sha256.New, []byte(key), salt[:], "cloudfn idempotency key 1: "+use, sha256.Size)
		if err != nil {
			return s, err
		}
	}
	s.id, s.mac = derived[0], derived[1]
	block, err := aes.NewCipher(derived[2])
	if err == nil {
		s.aead, err = cipher.NewGCMWithRandomNonce(block)
	}
	return s, err
}

// macOf identifies a request by what it says, however that is written. It has no defaults filled in, because only an
// operation knows its own. The key of the MAC keeps secrets in the body from being guessed.
func (s secrets) macOf(c *call) []byte {
	mac := hmac.New(sha256.New, s.mac)
	u := c.request.URL
	mac.Write([]byte(c.request.Method + "\x00" + u.EscapedPath() + "\x00" + u.Query().Encode() + "\x00"))
	mac.Write(canonical(c.body))
	return mac.Sum(nil)
}

// canonical is a body without spaces, its fields in order. call.read has checked it: it is JSON with each key once, or
// empty.
func canonical(body []byte) []byte {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber() // numbers stay as they are written: large ones exact, and 1.0 another one than 1
	if decoder.Decode(&value) != nil {
		return body
	}
	text, _ := json.Marshal(value) //nolint:errchkjson // it was decoded from JSON
	return text
}

// storedResponse is the plaintext of a stored response.
type storedResponse struct {
	Status      int         `json:"status"`
	Header      http.Header `json:"header"`
	ContentType string      `json:"content_type"`
	Body        []byte      `json:"body"`
}

// begin claims a request with a key, before the operation's handler. When it was done before, the call has its
// response.
func (c *call) begin(ctx context.Context) (context.Context, error) {
	if c.key == "" || c.request.URL.Query().Get("dry_run") == "true" { // a dry run does nothing that could be doubled
		return ctx, nil
	}
	k, _ := ctx.Value(keysKey{}).(keys)
	s, err := deriveSecrets(k.who, c.key)
	if err != nil {
		return ctx, err
	}
	claimFor := time.Minute
	if deadline, isSet := ctx.Deadline(); isSet {
		claimFor = time.Until(deadline) + slack
	}
	request, err := k.store.Begin(ctx, domain.KeyedRequest{
		ProjectID: k.who.ProjectID, KeyID: s.id, RequestMAC: s.macOf(c),
	}, claimFor)
	if err != nil {
		return ctx, err
	}
	if request.Response == nil {
		c.attempt = &attempt{KeyedRequest: request, secrets: s, store: k.store}
		return domain.WithAttempt(ctx, request), nil
	}
	text, err := s.aead.Open(nil, nil, request.Response, s.id)
	if err != nil {
		return ctx, err
	}
	var stored storedResponse
	if err := json.Unmarshal(text, &stored); err != nil {
		return ctx, err
	}
	stored.Header.Set(replayedHeader, "true")
	c.response = &Response{
		Status: stored.Status, Header: stored.Header, ContentType: stored.ContentType, Body: stored.Body,
	}
	return ctx, nil
}

// attempt is a request with a key that this process works on.
type attempt struct {
	domain.KeyedRequest
	secrets

	store KeyedRequests
}

// end stores the response, also when the client has hung up. On failure the claim expires, and the next attempt finds
// out what was made. It resumes what is not done: a response with Retry-After is not the last one.
func (a *attempt) end(ctx context.Context, resp Response, failed error) {
	if a == nil {
		return
	}
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	var err error
	code := apperr.CodeOf(failed)
	// OpenStack may stop accepting calls, or the token, after something was made. A limit of ours refuses before that.
	mayResume := apperr.Retryable(failed) && apperr.As(failed).Limit == nil || code == apperr.Unauthenticated
	isRejected := statusOf[code] < http.StatusInternalServerError && !mayResume
	switch {
	case failed == nil && resp.Header.Get("Retry-After") == "":
		text, _ := json.Marshal(storedResponse{ //nolint:errchkjson // it has only strings and numbers
			resp.Status, resp.Header, resp.ContentType, resp.Body,
		})
		err = a.store.Finish(writing, a.KeyedRequest, a.aead.Seal(nil, nil, text, a.id)) //nolint:gosec // has a nonce
	case failed != nil && isRejected && !a.Resumed:
		err = a.store.Abandon(writing, a.KeyedRequest)
	default:
		err = a.store.Release(writing, a.KeyedRequest)
	}
	if err != nil {
		slog.WarnContext(ctx, "the response to a request with an Idempotency-Key is not stored", "error", err)
	}
}
