package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// store is a registry whose manifests are kept on disk too: the library keeps only the blobs there.
type store struct {
	http.Handler
	manifests string
}

// manifest is the body of the request that put it.
type manifest struct {
	Path, ContentType string
	Body              []byte
}

const maxManifest = 4 << 20

var manifestPath = regexp.MustCompile(`^/v2/.+/manifests/[^/]+$`)

func serve(ctx context.Context, address, folder string) error {
	s := &store{manifests: filepath.Join(folder, "manifests")}
	blobs := filepath.Join(folder, "blobs")
	for _, f := range []string{s.manifests, blobs} {
		if err := os.MkdirAll(f, 0o750); err != nil {
			return fmt.Errorf("registry: %w", err)
		}
	}
	s.Handler = registry.New(
		registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)),
		registry.Logger(log.New(io.Discard, "", 0)),
	)
	if err := s.replay(ctx); err != nil {
		return err
	}
	server := &http.Server{
		Addr: address, Handler: s, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	log.Printf("serving %s on %s", folder, address)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("registry: %w", err)
	}
	return nil
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut || !manifestPath.MatchString(r.URL.Path) {
		s.Handler.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxManifest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m := manifest{r.URL.Path, r.Header.Get("Content-Type"), body}
	answer := s.put(r.Context(), m)
	if answer.Code < http.StatusMultipleChoices {
		if err := s.save(m); err != nil {
			log.Print(err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	if _, err := answer.Body.WriteTo(w); err != nil {
		log.Printf("answering %s: %v", m.Path, err)
	}
}

// put hands a manifest to the library.
func (s *store) put(ctx context.Context, m manifest) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPut, m.Path, bytes.NewReader(m.Body))
	r.Header.Set("Content-Type", m.ContentType)
	w := httptest.NewRecorder()
	s.Handler.ServeHTTP(w, r)
	return w
}

func (s *store) save(m manifest) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("saving %s: %w", m.Path, err)
	}
	file, err := os.CreateTemp(s.manifests, ".new-*")
	if err != nil {
		return fmt.Errorf("saving %s: %w", m.Path, err)
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), filepath.Join(s.manifests, fmt.Sprintf("%x.json", sha256.Sum256([]byte(m.Path)))))
	}
	if err != nil {
		return fmt.Errorf("saving %s: %w", m.Path, errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}

// replay puts the manifests on disk back; the indexes last, for they name other manifests.
func (s *store) replay(ctx context.Context) error {
	paths, err := filepath.Glob(filepath.Join(s.manifests, "*.json"))
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	var images, indexes []manifest
	for _, path := range paths {
		var m manifest
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("registry: %w", err)
		}
		if err := json.Unmarshal(data, &m); err != nil {
			return fmt.Errorf("registry: %s: %w", path, err)
		}
		if types.MediaType(m.ContentType).IsIndex() {
			indexes = append(indexes, m)
		} else {
			images = append(images, m)
		}
	}
	for _, m := range append(images, indexes...) {
		if answer := s.put(ctx, m); answer.Code >= http.StatusMultipleChoices {
			log.Printf("left out %s: %d %s", m.Path, answer.Code, answer.Body)
		}
	}
	return nil
}
