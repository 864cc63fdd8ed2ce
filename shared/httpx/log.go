package httpx

import (
	"context"
	"errors"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// LogFailure logs why a request failed. An error without a code is put down to the end of the request, if that has
// come.
func LogFailure(ctx context.Context, function string, err error) error {
	if apperr.CodeOf(err) == apperr.Internal {
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			err = apperr.Wrap(apperr.ClientGone, err, "the client hung up")
		case ctx.Err() != nil:
			err = apperr.Wrap(apperr.Timeout, err, "the request took too long")
		}
	}
	code, level := apperr.CodeOf(err), slog.LevelInfo
	if apperr.Retryable(err) && code != apperr.ClientGone {
		level = slog.LevelWarn
	}
	slog.Log(ctx, level, "request failed", "function", function, "code", code, "error", err)
	return err
}

// LogRequest writes the line that every request has.
func LogRequest(ctx context.Context, row domain.Request) {
	slog.InfoContext(ctx, "request", "function", row.Function, "method", row.Method, "path", row.Path,
		"status", row.Status,
		"ms", row.Duration.Milliseconds(), "project_id", row.ProjectID, "code", row.Code)
}
