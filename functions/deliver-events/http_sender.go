package deliverevents

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/seal"
	"github.com/cloudfn/cloudfn/shared/webhook"
)

// sender sends events to receivers.
type sender struct {
	webhook  *webhook.Client
	keys     seal.PrivateKeys
	sink     *eventx.Sink // nil without K_SINK
	optional bool         // a receiver need not support the handshake
}

// Send makes one attempt. It fails when no answer came.
func (p sender) Send(ctx context.Context, a domain.Attempt) (answer, error) {
	event := webhook.EventOf(a.Event)
	if isSink(a.Callback) {
		if p.sink == nil {
			return answer{}, apperr.New(apperr.Unavailable, "this replica has no K_SINK")
		}
		return answer{taken: true}, p.sink.Send(ctx, event)
	}
	secrets, err := p.secrets(a.Callback)
	if err != nil {
		return answer{}, err
	}
	got, err := p.webhook.Send(ctx, a.Callback.URL, secrets, event, time.Now())
	return answer{
		status: got.Status, taken: got.OK(), gone: got.Gone(), busy: got.Busy(), pause: got.RetryAfter,
		problem: got.Problem(),
	}, err
}

// unsignedError is why an event cannot be signed: SEAL_PRIVATE_KEY lacks the key, or the stored secret is damaged. That
// is the operator's to repair, and says nothing about the receiver.
type unsignedError struct{ cause error }

// Error implements error.
func (e unsignedError) Error() string {
	return "the callback's secret cannot be decrypted: " + e.cause.Error()
}

// Unwrap returns the cause.
func (e unsignedError) Unwrap() error { return e.cause }

// secrets are those that sign: the callback's, and those before it while they are good. One of these that cannot be
// decrypted is left out, because a receiver accepts any signature that it knows.
func (p sender) secrets(c domain.Callback) ([]domain.Secret, error) {
	var secrets []domain.Secret
	for n, sealed := range append([][]byte{c.Secret, c.PreviousSecret}, c.OlderSecrets...) {
		if sealed == nil {
			continue
		}
		secret, err := p.keys.Open(c.SealedFor(), sealed)
		if err != nil && n > 0 {
			continue
		}
		if err != nil {
			return nil, unsignedError{err}
		}
		secrets = append(secrets, secret)
	}
	return secrets, nil
}

// Handshake asks a receiver for its consent. It fails when no answer came.
func (p sender) Handshake(ctx context.Context, c domain.Callback) (consent, error) {
	got, err := p.webhook.Handshake(ctx, c.URL)
	switch {
	case err != nil:
		return consent{}, err
	case got.Given, p.optional && lacksHandshake(got.Status):
		return consent{given: true, rate: got.Rate}, nil
	case !got.OK():
		return consent{reason: "handshake: " + got.Problem()}, nil
	}
	return consent{reason: "the receiver did not consent: it answered without WebHook-Allowed-Origin, or with " +
		"another origin"}, nil
}

// lacksHandshake reports whether a receiver with this answer does not support the handshake.
func lacksHandshake(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return true
	}
	return status/100 == 2
}

// hostOf is the part of a URL that may be logged.
func hostOf(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Hostname())
}

func isSink(c domain.Callback) bool { return c.ProjectID == "" && c.ID == uuid.Nil }

// reasonOf is why no answer came, as callers may read it.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*apperr.Error](err); ok {
		return e.Message
	}
	return "no answer came"
}
