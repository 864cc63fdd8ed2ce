package run

import (
	"cmp"
	"compress/gzip"
	"context"
	"embed"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/swaggest/swgui/v5/static"
	"golang.org/x/sync/singleflight"

	"github.com/cloudfn/cloudfn/shared/apperr"
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
	found := p.dependencies.check()
	return Status{
		Version: buildinfo.Version(), Function: p.cfg.Target, Postgres: found.postgres, Keystone: found.keystone,
	}, nil
}

func dependency(err error) Dependency {
	if err == nil {
		return Dependency{Reachable: true}
	}
	problem := httpx.NewProblem(err)
	return Dependency{Error: &problem}
}

// GET /v1/status needs no token, so all callers together cause one check of each dependency within statusTTL.
const (
	statusTimeout = 3 * time.Second // of a check
	statusTTL     = 2 * time.Second
)

// dependencies caches whether the process reaches Postgres and Keystone.
type dependencies struct {
	postgres, keystone func(context.Context) error

	flight singleflight.Group
	mu     sync.Mutex
	last   reached
	until  time.Time // last is valid
}

type reached struct{ postgres, keystone Dependency }

// check returns what the last check found, or checks if that is old.
func (d *dependencies) check() reached {
	d.mu.Lock()
	last, isFresh := d.last, time.Now().Before(d.until)
	d.mu.Unlock()
	if isFresh {
		return last
	}
	found, _, _ := d.flight.Do("", func() (any, error) {
		// Not the context of a request: the others wait for the result, too.
		ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
		defer cancel()
		var now reached
		var both sync.WaitGroup
		both.Go(func() { now.postgres = dependency(d.postgres(ctx)) })
		both.Go(func() { now.keystone = dependency(d.keystone(ctx)) })
		both.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.last, d.until = now, time.Now().Add(statusTTL)
		return now, nil
	})
	return found.(reached) //nolint:forcetypeassert // the function above returns nothing else
}

//go:embed docs
var docsFiles embed.FS

// docsPolicy lets the page use nothing but what comes from here, and the icons in Swagger UI's style sheet.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// docs serves the page at /v1/docs, and Swagger UI's files beside it.
func (p *Process) docs(r *http.Request) (httpx.Response, error) {
	if err := httpx.NoQuery(r); err != nil {
		return httpx.Response{}, err
	}
	name := r.PathValue("file")
	if name == "" {
		name = "index.html"
	}
	header := http.Header{}
	header.Set("Content-Security-Policy", docsPolicy)
	header.Set("Referrer-Policy", "no-referrer")
	file, isZipped, err := openDocs(name)
	if err != nil {
		return httpx.Response{}, apperr.New(apperr.NotFound, "unknown file %.64q of the reference", name)
	}
	header.Set("Cache-Control", "no-cache") // our files fit each other, also after an upgrade
	if isZipped {
		header.Set("Cache-Control", "max-age=3600")
	}
	unzip := isZipped && !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
	if isZipped && !unzip {
		header.Set("Content-Encoding", "gzip")
	}
	return httpx.Response{
		Status: http.StatusOK, ContentType: mime.TypeByExtension(path.Ext(name)), Header: header,
		// No copy of a large file is held, however slow its readers are.
		Stream: func(_ context.Context, w io.Writer) error { return copyDocs(w, file, unzip) },
	}, nil
}

// openDocs opens a file of the page. Ours go before Swagger UI's, whose large ones are zipped.
func openDocs(name string) (file fs.File, isZipped bool, err error) {
	for _, ending := range []string{"", ".gz"} {
		if file, err = docsFiles.Open("docs/" + name + ending); err != nil {
			file, err = static.FS.Open(name + ending)
		}
		if err != nil {
			continue
		}
		if info, err := file.Stat(); err != nil || info.IsDir() {
			return nil, false, cmp.Or(err, fs.ErrNotExist)
		}
		return file, ending != "", nil
	}
	return nil, false, err
}

func copyDocs(w io.Writer, file io.Reader, unzip bool) error {
	if unzip {
		var err error
		if file, err = gzip.NewReader(file); err != nil {
			return err
		}
	}
	_, err := io.Copy(w, file) //nolint:gosec // a file of ours, as large as it is
	return err
}
