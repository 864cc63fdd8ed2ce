package domain

import (
	"context"

	"github.com/google/uuid"
)

// KeyedRequest is a request with an Idempotency-Key: its effect is there once, however often it is sent. Response is
// set when it is done; until then the replica that began it holds the claim.
type KeyedRequest struct {
	ProjectID  string
	KeyID      []byte // derived from the user and the key, which is stored nowhere
	RequestMAC []byte

	ID       uuid.UUID // of what the request makes, the same in every attempt
	Claim    Claim
	Resumed  bool   // an earlier attempt has no response; it may have made what has ID
	Response []byte // encrypted
}

type attemptKey struct{}

// WithAttempt returns a context in which AttemptFrom returns the attempt at a request.
func WithAttempt(ctx context.Context, attempt KeyedRequest) context.Context {
	return context.WithValue(ctx, attemptKey{}, attempt)
}

// AttemptFrom returns the ID of what a request makes. isKeyed is false when the request has no Idempotency-Key: then
// the ID is a new one. isResumed reports whether an earlier attempt may have made it.
func AttemptFrom(ctx context.Context) (id uuid.UUID, isKeyed, isResumed bool) {
	attempt, isKeyed := ctx.Value(attemptKey{}).(KeyedRequest)
	if !isKeyed {
		attempt.ID = uuid.Must(uuid.NewV7())
	}
	return attempt.ID, isKeyed, attempt.Resumed
}
