package httpx

import (
	"context"
	"io"
	"log/slog"
	"net/http"
)

// Stream writes the body of an answer that may be too long to be made whole. It is called once the answer's row is
// durable. When it fails, the connection ends, so that the client does not take a part for the whole.
type Stream func(ctx context.Context, w io.Writer) error

// stream sends the body of an answer that has begun.
func (resp Response) stream(ctx context.Context, w http.ResponseWriter) {
	err := resp.Stream(ctx, w)
	if err == nil {
		return
	}
	slog.WarnContext(ctx, "an answer broke off", "error", err)
	abort(w)
}

// abort ends the connection under an answer that has begun. The functions framework makes a whole answer of a panic, so
// that is for when there is no connection to be had, as of HTTP/2.
func abort(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_ = conn.Close()
}
