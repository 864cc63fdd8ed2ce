package guest_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// registry serves one image, by the parts of the OCI distribution API that a pull takes.
type registry struct {
	mu       sync.Mutex
	login    string // "user:password"; "" = none is required
	requests []string
	manifest []byte
	blobs    map[string][]byte
}

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// newRegistry builds the image: one static program, and nothing else.
func newRegistry(t *testing.T) *registry {
	t.Helper()
	program := filepath.Join(t.TempDir(), "container")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", program, "./testdata/container")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Name: "container", Mode: 0o755, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(content)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r := &registry{blobs: map[string][]byte{}}
	layers := r.add(layerType, layer.Bytes())
	config, _ := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Entrypoint": []string{"/container"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layers["digest"]}},
	})
	r.manifest, _ = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": r.add(configType, config),
		"layers": []any{layers},
	})
	return r
}

func (r *registry) add(mediaType string, content []byte) map[string]any {
	digest := digestOf(content)
	r.blobs[digest] = content
	return map[string]any{"mediaType": mediaType, "digest": digest, "size": len(content)}
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, req.Method+" "+req.URL.Path)
	user, password, _ := req.BasicAuth()
	parts := strings.Split(req.URL.Path, "/")
	kind, name := parts[max(0, len(parts)-2)], parts[len(parts)-1]
	blob := r.blobs[name]
	switch {
	case r.login != "" && user+":"+password != r.login:
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
	case req.URL.Path == "/v2/":
	case kind == "manifests" && name != "none":
		w.Header().Set("Content-Type", manifestType)
		w.Header().Set("Docker-Content-Digest", digestOf(r.manifest))
		_, _ = w.Write(r.manifest)
	case kind == "blobs" && blob != nil:
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(blob)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// require has the registry take requests with this login only, "user:password"; "" = with any or none.
func (r *registry) require(login string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.login = login
}

// pulls counts how often the manifest was read.
func (r *registry) pulls() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, request := range r.requests {
		if strings.HasPrefix(request, http.MethodGet) && strings.Contains(request, "/manifests/") {
			n++
		}
	}
	return n
}
