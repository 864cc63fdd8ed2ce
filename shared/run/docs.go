package run

import (
	"bytes"
	"compress/gzip"
	"embed"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"

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
	files, err := readDocs()
	if err != nil {
		return httpx.Response{}, err
	}
	file, ok := files[name]
	if !ok {
		return httpx.Response{}, apperr.New(apperr.NotFound, "unknown file %.64q of the reference", name)
	}
	body := file.plain
	if file.zipped != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		header.Set("Content-Encoding", "gzip")
		body = file.zipped
	}
	return httpx.Response{
		Status: http.StatusOK, ContentType: mime.TypeByExtension(path.Ext(name)), Body: body, Header: header,
	}, nil
}

// docsFile is a file of the page; zipped is nil when it is small.
type docsFile struct{ plain, zipped []byte }

// readDocs reads all files once. Answers share the bytes: slow readers of the large ones would hold a copy each.
var readDocs = sync.OnceValues(func() (map[string]docsFile, error) {
	files := map[string]docsFile{}
	for _, from := range []fs.FS{static.FS, docsFiles} { // ours go before Swagger UI's
		err := fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			file, err := readDocsFile(from, name)
			files[strings.TrimSuffix(path.Base(name), ".gz")] = file
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
})

func readDocsFile(from fs.FS, name string) (docsFile, error) {
	body, err := fs.ReadFile(from, name)
	if err != nil || path.Ext(name) != ".gz" {
		return docsFile{plain: body}, err
	}
	reader, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return docsFile{}, err
	}
	plain, err := io.ReadAll(reader)
	return docsFile{plain: plain, zipped: body}, err
}
