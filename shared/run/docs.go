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

	"github.com/swaggest/swgui/v5/static"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

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
	header.Set("Cache-Control", "max-age=3600")
	header.Set("Vary", "Accept-Encoding")
	file, isZipped, err := openDocs(name)
	if err != nil {
		return httpx.Response{}, apperr.New(apperr.NotFound, "unknown file %.64q of the reference", name)
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
