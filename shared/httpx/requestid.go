package httpx

import (
	"context"
	"net/http"

	"github.com/google/uuid"
)

type (
	requestIDKey struct{}
	clientKey    struct{}
)

func withClient(ctx context.Context, address string) context.Context {
	return context.WithValue(ctx, clientKey{}, address)
}

// ClientAddress is the address of the client whose request is being served, without its port; "" outside of a request.
func ClientAddress(ctx context.Context) string {
	address, _ := ctx.Value(clientKey{}).(string)
	return address
}

func withRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// NewRequestID puts a new request id into the context, for work that no request began.
func NewRequestID(ctx context.Context) context.Context {
	return withRequestID(ctx, "req-"+uuid.NewString())
}

// TakeRequestID puts the id that the request came with into its context, or a new one.
func TakeRequestID(r *http.Request) context.Context {
	return withRequestID(r.Context(), requestID(r.Header.Get("X-Request-Id")))
}

// RequestID is the id of the request that is being served: req-<uuid>, the form that OpenStack accepts as a
// global request id. "" outside of a request.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// requestID takes the caller's id when it is a UUID, with or without "req-", and makes one otherwise.
func requestID(given string) string {
	if len(given) > 4 && given[:4] == "req-" {
		given = given[4:]
	}
	if id, err := uuid.Parse(given); err == nil && len(given) == 36 {
		return "req-" + id.String()
	}
	return "req-" + uuid.NewString()
}
