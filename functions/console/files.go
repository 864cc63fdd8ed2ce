package console

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

//go:embed static
var staticFiles embed.FS

const indexFile = "index.html"

// contentTypes are those of the files that there may be.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon", ".webmanifest": "application/manifest+json",
}

// policy lets the page use nothing but what comes from here, and no other page use it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'none'; base-uri 'none'; frame-ancestors 'none'"

// file is one file of the page, ready to be sent.
type file struct {
	kind string
	etag string
	body []byte
}

// page reads the files.
func page() (map[string]file, error) {
	entries, err := staticFiles.ReadDir("static")
	if err != nil {
		return nil, err
	}
	files := map[string]file{}
	for _, e := range entries {
		kind, known := contentTypes[path.Ext(e.Name())]
		if !known || e.IsDir() {
			return nil, fmt.Errorf("static/%s: unknown kind of file", e.Name())
		}
		body, err := staticFiles.ReadFile("static/" + e.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(body)
		files[e.Name()] = file{kind, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`, body}
	}
	return files, nil
}

// file gives a file of the page. A browser keeps it, and asks each time whether it is still the same.
func (h handler) file(r *http.Request) (httpx.Response, error) {
	name := r.PathValue("file")
	if name == "" {
		name = indexFile
	}
	f, found := h.files[name]
	if !found {
		return httpx.Response{}, apperr.New(apperr.NotFound, "unknown file %.64q of the console", name)
	}
	resp := httpx.Response{Status: http.StatusOK, ContentType: f.kind, Body: f.body, Header: http.Header{}}
	for name, value := range map[string]string{
		"ETag": f.etag, "Cache-Control": "no-cache",
		"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer",
		"Cross-Origin-Opener-Policy": "same-origin",
	} {
		resp.Header.Set(name, value)
	}
	if unchanged(r.Header.Get("If-None-Match"), f.etag) {
		resp.Status, resp.Body = http.StatusNotModified, nil
	}
	return resp, nil
}

// unchanged reports whether the browser has the file already.
func unchanged(known, etag string) bool {
	return slices.ContainsFunc(strings.Split(known, ","), func(tag string) bool {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
		return tag == etag || tag == "*"
	})
}
