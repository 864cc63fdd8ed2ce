package run

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"time"

	"github.com/cloudfn/cloudfn/shared/buildinfo"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// common are the routes that every process serves besides its functions' own.
func (p *Process) common() []httpx.Route {
	status := httpx.Handle("GET /v1/status", p.status)
	status.Public, status.Probe = true, true
	description := httpx.Handle("GET /v1/openapi.yaml", p.description)
	description.Public = true
	reference := httpx.Handle("GET /v1/docs", p.reference)
	reference.Public = true
	return []httpx.Route{status, description, reference}
}

// Texts describe the API; every process serves them.
type Texts struct {
	OpenAPI   []byte
	Reference []byte // a page made of OpenAPI, with one style element in it and no script
}

func (p *Process) description(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	return httpx.Response{Status: http.StatusOK, ContentType: "application/yaml", Body: p.texts.OpenAPI, Header: http.Header{}}, nil
}

func (p *Process) reference(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	header := http.Header{}
	header.Set("Content-Security-Policy", referencePolicy(p.texts.Reference))
	header.Set("Referrer-Policy", "no-referrer")
	return httpx.Response{Status: http.StatusOK, ContentType: "text/html; charset=utf-8", Body: p.texts.Reference, Header: header}, nil
}

// referencePolicy allows a page its own style element, and nothing else.
func referencePolicy(page []byte) string {
	_, style, _ := bytes.Cut(page, []byte("<style>"))
	style, _, _ = bytes.Cut(style, []byte("</style>"))
	hash := sha256.Sum256(style)
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// Status is what a process says of itself.
type Status struct {
	Version  string     `json:"version"` // see buildinfo.Version
	Function string     `json:"function"`
	Postgres Dependency `json:"postgres"`
	Keystone Dependency `json:"keystone"`
	Settings Settings   `json:"settings"`
}

// Dependency is another system, as this process reaches it.
type Dependency struct {
	Reachable bool           `json:"reachable"`
	Error     *httpx.Problem `json:"error,omitempty"`
}

const statusTimeout = 3 * time.Second

func (p *Process) status(r *http.Request) (Status, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return Status{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), statusTimeout)
	defer cancel()
	return Status{
		Version: buildinfo.Version(), Function: p.cfg.Target,
		Postgres: dependency(p.log.Ready(ctx)), Keystone: dependency(p.cloud.Reachable(ctx)),
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
