package servers

import (
	"context"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// maxConsoleLog bounds a console log, in bytes. Nova's drivers keep 100 KiB, where they bound it.
const maxConsoleLog = 256 << 10

// ConsoleLog returns the last lines of a server's console log, at most maxConsoleLog bytes of them.
func (s service) ConsoleLog(ctx context.Context, a access, id string, lines int) (string, error) {
	server, err := s.withConsole(ctx, a, id)
	if err != nil {
		return "", err
	}
	output, err := a.cloud.ConsoleLog(ctx, server, lines)
	return lastLines(output, lines), withoutConsole(err)
}

// RemoteConsole returns a URL of a server's remote console. It has a token, so it is a secret.
func (s service) RemoteConsole(
	ctx context.Context, a access, id string, kind domain.ConsoleType,
) (domain.Secret, error) {
	server, err := s.withConsole(ctx, a, id)
	if err != nil {
		return "", err
	}
	at, err := a.cloud.RemoteConsole(ctx, server, kind)
	return at, withoutConsole(err)
}

// withConsole returns Nova's id of a server of the caller's project, by its own id or its instance's. Nova alone would
// show admins the consoles of other projects, too.
func (s service) withConsole(ctx context.Context, a access, id string) (string, error) {
	i, err := s.find(ctx, a, id)
	isTracked := i.ID != uuid.Nil
	switch {
	case err != nil:
		return "", err
	case isTracked && i.ServerID == "":
		return "", apperr.New(apperr.NotFound, "the instance %s has no server", id)
	case isTracked:
		id = i.ServerID
	}
	server, err := actions.ReadServer(ctx, a.cloud, id, a.ProjectID, isTracked)
	return server.ID, err
}

// withoutConsole is Nova's rejection of a console. The server was read just before, and the request was checked: so it
// is the console that is not found, or its type that the cloud does not offer.
func withoutConsole(err error) error {
	if code := apperr.CodeOf(err); code == apperr.NotFound || code == apperr.Invalid {
		return apperr.Wrap(apperr.Conflict, err, "the server has no such console: %s", apperr.As(err).Message)
	}
	return err
}

// lastLines returns the last lines of a text, as many as n and maxConsoleLog permit. A line that is too long is cut.
func lastLines(text string, n int) string {
	if len(text) > maxConsoleLog {
		text = text[len(text)-maxConsoleLog:]
		if _, rest, found := strings.Cut(text, "\n"); found && rest != "" {
			text = rest
		}
		text = strings.ToValidUTF8(text, "")
	}
	start := len(strings.TrimSuffix(text, "\n"))
	for range n {
		if start = strings.LastIndexByte(text[:start], '\n'); start < 0 {
			return text
		}
	}
	return text[start+1:]
}
