package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/crane"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	certificates = "etc/ssl/certs/ca-certificates.crt"
	nonroot      = "65532"
)

// entry is a file of a layer; a folder when its name ends in a slash.
type entry struct {
	name string
	mode int64
	data []byte
}

// layer makes a layer. It has no times, so that the same entries make the same layer.
func layer(entries []entry) (v1.Layer, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		kind := byte(tar.TypeReg)
		if e.name[len(e.name)-1] == '/' {
			kind = tar.TypeDir
		}
		header := &tar.Header{Name: e.name, Typeflag: kind, Mode: e.mode, Size: int64(len(e.data))}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("layer: %s: %w", e.name, err)
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, fmt.Errorf("layer: %s: %w", e.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("layer: %w", err)
	}
	return static.NewLayer(out.Bytes(), types.OCIUncompressedLayer), nil
}

// base is what a static binary needs around it: two users, /tmp, and the host's certificates when it has any.
func base() (v1.Image, error) {
	entries := []entry{
		{"etc/", 0o755, nil},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:" + nonroot + ":" + nonroot +
			":nonroot:/home/nonroot:/sbin/nologin\n")},
		{"etc/group", 0o644, []byte("root:x:0:\nnonroot:x:" + nonroot + ":\n")},
		{"etc/ssl/", 0o755, nil},
		{"etc/ssl/certs/", 0o755, nil},
		{"tmp/", 0o1777, nil},
	}
	switch bundle, err := os.ReadFile("/" + certificates); {
	case err == nil:
		entries = append(entries, entry{certificates, 0o644, bundle})
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("base image: %w", err)
	}
	l, err := layer(entries)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if image, err = mutate.AppendLayers(image, l); err != nil {
		return nil, fmt.Errorf("base image: %w", err)
	}
	return configured(image, func(c *v1.ConfigFile) {
		c.OS, c.Architecture = "linux", runtime.GOARCH
		c.Config = v1.Config{
			Env:        []string{"PATH=/ko-app:/usr/bin:/bin", "SSL_CERT_FILE=/" + certificates},
			User:       nonroot,
			WorkingDir: "/",
		}
	})
}

func configured(image v1.Image, change func(*v1.ConfigFile)) (v1.Image, error) {
	config, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("image configuration: %w", err)
	}
	config = config.DeepCopy()
	change(config)
	image, err = mutate.ConfigFile(image, config)
	if err != nil {
		return nil, fmt.Errorf("image configuration: %w", err)
	}
	return image, nil
}

func pushBase(ctx context.Context, ref string) error {
	image, err := base()
	if err != nil {
		return err
	}
	return push(ctx, image, ref)
}

// pushBinary makes an image that runs a static binary, on the base.
func pushBinary(ctx context.Context, ref, binary string) error {
	data, err := os.ReadFile(binary)
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	path := "ko-app/" + filepath.Base(binary)
	l, err := layer([]entry{{"ko-app/", 0o755, nil}, {path, 0o755, data}})
	if err != nil {
		return err
	}
	image, err := base()
	if err != nil {
		return err
	}
	if image, err = mutate.AppendLayers(image, l); err != nil {
		return fmt.Errorf("push: %w", err)
	}
	if image, err = configured(image, func(c *v1.ConfigFile) { c.Config.Entrypoint = []string{"/" + path} }); err != nil {
		return err
	}
	return push(ctx, image, ref)
}

// push pushes an image and prints its reference by digest.
func push(ctx context.Context, image v1.Image, ref string) error {
	if err := crane.Push(image, ref, crane.WithContext(ctx)); err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	fmt.Printf("%s@%s\n", ref, digest)
	return nil
}
