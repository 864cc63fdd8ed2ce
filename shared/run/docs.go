package run

import (
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/swaggest/swgui/v5/static"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

//go:embed docs
var docsFiles embed.FS

// docsPolicy lets the page use nothing but what comes from here, and the icons in Swagger UI's style sheet.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// docs serves the page at /v1/docs, and Swagger UI's files beside it.
func (p *Process) docs(r *http.Request) (httpx.Response, error) {
	if _, err := httpx.ReadQuery(r); err != nil {
		return httpx.Response{}, err
	}
	name := r.PathValue("file")
	if name == "" {
		name = "index.html"
	}
	header := http.Header{}
	header.Set("Content-Security-Policy", docsPolicy)
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "max-age=3600")
	header.Set("Vary", "Accept-Encoding")
	body, err := docsFiles.ReadFile("docs/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		body, err = swaggerFile(name, strings.Contains(r.Header.Get("Accept-Encoding"), "gzip"), header)
	}
	if err != nil {
		return httpx.Response{}, apperr.Wrap(apperr.NotFound, err, "unknown file %.64q of the reference", name)
	}
	return httpx.Response{Status: http.StatusOK, ContentType: mime.TypeByExtension(path.Ext(name)), Body: body, Header: header}, nil
}

// swaggerFile reads a file of Swagger UI. The large ones are kept compressed, and are sent so to who takes them.
func swaggerFile(name string, zipped bool, header http.Header) ([]byte, error) {
	body, err := static.FS.ReadFile(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return body, err
	}
	if body, err = static.FS.ReadFile(name + ".gz"); err != nil {
		return nil, err
	}
	if zipped {
		header.Set("Content-Encoding", "gzip")
		return body, nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}
