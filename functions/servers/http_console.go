package servers

import (
	"context"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

func consoleRoutes(api huma.API, h handler) {
	const noConsole = "The server has no console, none of this type, or no host yet (Nova's message)."
	httpx.Register(api, operation("GET /v1/servers/{id}/console", "getServerConsole",
		"Show the end of a server's console log", answers{
			200: "The last lines.", 404: noOwnServer, 409: noConsole, 501: noDriver,
		}), h.consoleLog)
	httpx.Register(api, operation("POST /v1/servers/{id}/console", "openServerConsole",
		"Open a server's remote console", answers{
			200: "The console's URL.", 404: noOwnServer, 409: noConsole, 501: noDriver,
		}), h.remoteConsole)
}

const (
	noOwnServer = "The project has no server and no instance of this id."
	noDriver    = "The cloud's hypervisor has no such console, or Nova is older than its 2.6 (2.8 for `webmks`)."
)

type consoleLogInput struct {
	ServerPath
	Lines  int    `query:"lines" minimum:"1" maximum:"1000" default:"100" doc:"The number of lines, at most."`
	Region string `query:"region" minLength:"1" example:"RegionOne"`
}

// ServerConsoleLog is the end of a server's console log.
type ServerConsoleLog struct {
	Output string `json:"output" maxLength:"262144" doc:"The last lines, without control characters."`
}

func (h handler) consoleLog(ctx context.Context, in *consoleLogInput) (*httpx.Value[ServerConsoleLog], error) {
	a, err := h.access(ctx, uuid.Nil, in.Region)
	if err != nil {
		return nil, err
	}
	output, err := h.svc.ConsoleLog(ctx, a, in.ID.String(), in.Lines)
	return &httpx.Value[ServerConsoleLog]{Body: ServerConsoleLog{output}}, err
}

type remoteConsoleInput struct {
	ServerPath
	Body ServerConsoleRequest
}

// ServerConsoleRequest is the body of POST /v1/servers/{id}/console.
type ServerConsoleRequest struct {
	Type string `json:"type" enum:"novnc,spice-html5,rdp-html5,serial,webmks" doc:"Nova's type of the console."`
}

// ServerConsole is a server's remote console. Its URL is a secret.
type ServerConsole struct {
	Type string `json:"type" enum:"novnc,spice-html5,rdp-html5,serial,webmks"`
	URL  string `json:"url" format:"uri" doc:"Opens the console, for as long as Nova takes its token."`
}

func (h handler) remoteConsole(ctx context.Context, in *remoteConsoleInput) (*httpx.Value[ServerConsole], error) {
	a, err := h.access(ctx, uuid.Nil, "")
	if err != nil {
		return nil, err
	}
	at, err := h.svc.RemoteConsole(ctx, a, in.ID.String(), domain.ConsoleType(in.Body.Type))
	return &httpx.Value[ServerConsole]{Body: ServerConsole{Type: in.Body.Type, URL: at.Reveal()}}, err
}
