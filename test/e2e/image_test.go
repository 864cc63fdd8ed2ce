//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestImage builds the image without a registry, and checks it: not root, one static binary and little else, and an
// SBOM.
func TestImage(t *testing.T) {
	cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "image"))
	cmd.Env = append(os.Environ(), "KO_DOCKER_REPO=")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("scripts/image: %v", err)
	}
	archive := filepath.Join(testkit.Root(), strings.TrimSpace(string(out)))
	info, err := os.Stat(archive)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 40<<20 {
		t.Errorf("the image has %d MB", info.Size()>>20)
	}
	files := untar(t, archive)
	type descriptor struct{ Digest string }
	var index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config struct {
		Config struct {
			User       string
			Entrypoint []string
		}
	}
	blob := func(d descriptor) []byte { return files["blobs/"+strings.ReplaceAll(d.Digest, ":", "/")] }
	decode(t, files["index.json"], &index)
	decode(t, blob(index.Manifests[0]), &manifest)
	decode(t, blob(manifest.Config), &config)
	if config.Config.User != "65532" || config.Config.Entrypoint[0] != "/ko-app/functions" {
		t.Errorf("its configuration is %+v", config.Config)
	}
	binary := layer(t, blob(manifest.Layers[len(manifest.Layers)-1]))["ko-app/functions"]
	program, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		t.Fatalf("its binary: %v", err)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("its binary is not static")
		}
	}
	var modules int
	for name, content := range files {
		if strings.HasSuffix(name, ".json") && bytes.Contains(content, []byte("spdxVersion")) {
			modules = bytes.Count(content, []byte("pkg:golang/"))
		}
	}
	if modules < 20 {
		t.Errorf("its SBOM lists %d modules", modules)
	}
}

func decode(t testing.TB, document []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(document, into); err != nil {
		t.Fatalf("%v in %.200s", err, document)
	}
}

func untar(t testing.TB, path string) map[string][]byte {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	return entries(t, file)
}

func layer(t testing.TB, blob []byte) map[string][]byte {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	return entries(t, unzipped)
}

func entries(t testing.TB, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimLeft(header.Name, "./")] = content
	}
}
