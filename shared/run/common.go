package run

import (
	"context"
	"net/http"

	"github.com/cloudfn/cloudfn/shared/buildinfo"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// common returns the routes of every process.
func (p *Process) common() []httpx.Route {
	status := httpx.Handle("GET /v1/status", p.status)
	status.Public, status.Probe = true, true
	description := httpx.Handle("GET /v1/openapi.yaml", p.description)
	description.Public = true
	page, file := httpx.Handle("GET /v1/docs", p.docs), httpx.Handle("GET /v1/docs/{file}", p.docs)
	page.Public, file.Public = true, true
	return []httpx.Route{status, description, page, file}
}

// Texts describe the API; every process serves them.
type Texts struct {
	OpenAPI []byte
}

func (p *Process) description(r *http.Request) (httpx.Response, error) {
	if err := httpx.NoQuery(r); err != nil {
		return httpx.Response{}, err
	}
	return httpx.Response{
		Status: http.StatusOK, ContentType: "application/yaml", Body: p.texts.OpenAPI, Header: http.Header{},
	}, nil
}

// Status is the status of a process.
type Status struct {
	Version  string     `json:"version"` // see buildinfo.Version
	Function string     `json:"function"`
	Postgres Dependency `json:"postgres"`
	Keystone Dependency `json:"keystone"`
	Settings Settings   `json:"settings"`
}

// Dependency reports whether this process reaches another system.
type Dependency struct {
	Reachable bool           `json:"reachable"`
	Error     *httpx.Problem `json:"error,omitempty"`
}

func (p *Process) status(r *http.Request) (Status, error) {
	if err := httpx.NoQuery(r); err != nil {
		return Status{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
	defer cancel()
	found := p.dependencies.check()
	return Status{
		Version: buildinfo.Version(), Function: p.cfg.Target, Postgres: found.postgres, Keystone: found.keystone,
		Settings: p.checkedSettings(ctx),
	}, nil
}

func dependency(err error) Dependency {
	if err == nil {
		return Dependency{Reachable: true}
	}
	problem := httpx.NewProblem(err)
	return Dependency{Error: &problem}
}
