package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestLongBuild runs the commands of the page in a copy of the checkout, the Dockerfile's with Buildah. No registry is
// asked: the base of the build is this machine's Go and a shell, and the other one is empty. The second image is built
// without a network, from what make vendor has copied.
func TestLongBuild(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	b := newBuildah(t)
	const golang, image = "localhost/golang:test", "registry.example.com/cloudfn"
	b.golang(t, golang)
	parent := t.TempDir()
	checkout := filepath.Join(parent, "cloudfn")
	output(t, "bash", "-c", `mkdir "$1" && git ls-files -z -co --exclude-standard | xargs -0 tar -c | tar -x -C "$1"`,
		"copy", checkout)
	w := terminals(t, "")
	build := slices.Concat(b.args, []string{
		"build", "--quiet", "--pull-never", "--isolation", "chroot", "--build-arg", "GO_IMAGE=" + golang, "--build-arg",
		"BASE_IMAGE=scratch", "--volume", goEnv(t, "GOCACHE") + ":/root/.cache/go-build:rw",
	})
	modules := "--volume " + goEnv(t, "GOMODCACHE") + ":/root/go/pkg/mod:ro"
	w.replace = append(w.replace,
		[2]string{"docker build --network none", "unshare --net " + strings.Join(build, " ")}, // a chroot has no --network
		[2]string{"docker build", strings.Join(append(build, modules), " ")})
	w.dir = checkout
	w.walk(t, "build.md")

	if got := b.run(t, "inspect", "--type", "image", "--format", "{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}}",
		image); got != "65532:65532 [/cloudfnd]" {
		t.Errorf("the image has user and entry point %q", got)
	}
	container := b.run(t, "from", image)
	root := b.run(t, "mount", container)
	files, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil || len(files) != 1 || filepath.Base(files[0]) != "cloudfnd" {
		t.Fatalf("the image has the files %v, %v", files, err)
	}
	if out := output(t, files[0], "describe"); !strings.Contains(out, `"deliver-events"`) {
		t.Errorf("its binary describes %.200s", out)
	}
	if out := b.run(t, "run", "--isolation", "chroot", container, "--", "/cloudfnd", "keys"); !strings.HasPrefix(out,
		"SEAL_PUBLIC_KEY=") {
		t.Errorf("in the image it prints %.200s", out)
	}
}

// TestLongSameBuild builds the commit in two clones with caches of their own: the binaries are identical.
func TestLongSameBuild(t *testing.T) {
	t.Parallel()
	testkit.Heavy(t)
	var sums []string
	for _, folder := range []string{"a", "another/folder"} {
		at := filepath.Join(t.TempDir(), folder)
		sums = append(sums, output(t, "bash", "-euc", `git clone -q "$1" "$2" && cd "$2"
GOCACHE="$2-cache" make build > /dev/null && cd .local/bin && sha256sum cloudfnd cloudfn`, "build", testkit.Root(), at))
	}
	if sums[0] != sums[1] || strings.Count(sums[0], "\n") != 1 {
		t.Errorf("the builds are %s and %s", sums[0], sums[1])
	}
}

// TestDockerfile: the Dockerfile and ko make the same image, with the Go of go.mod.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	file, ko := read(t, "../Dockerfile"), read(t, "../.ko.yaml")
	arg := func(name string) string {
		_, rest, _ := strings.Cut(file, "ARG "+name+"=")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	base := arg("BASE_IMAGE")
	if !regexp.MustCompile(`^gcr\.io/distroless/static-debian12:nonroot@sha256:[0-9a-f]{64}$`).MatchString(base) {
		t.Errorf("the base is %q: a tag without a digest is another image tomorrow", base)
	}
	if !strings.Contains(ko, "defaultBaseImage: "+base+"\n") {
		t.Errorf("the Dockerfile's base is %q, ko's another one", base)
	}
	const symbol = "-X github.com/cloudfn/cloudfn/shared/buildinfo.version="
	if !strings.Contains(file, symbol) || !strings.Contains(ko, symbol) {
		t.Errorf("not both have %s", symbol)
	}
	version := toolchain(t)
	if golang := arg("GO_IMAGE"); !strings.Contains(golang, ":"+version+"-") {
		t.Errorf("the Dockerfile builds with %q, go.mod with %q", golang, version)
	}
	for _, text := range []string{": go" + version, "golang:" + version + " ", "needs Go " + version} {
		if !strings.Contains(read(t, "build.md"), text) {
			t.Errorf("build.md lacks %q", text)
		}
	}
}

// toolchain returns the version of the Go of go.mod, such as 1.26.10.
func toolchain(t *testing.T) string {
	t.Helper()
	_, version, _ := strings.Cut(read(t, "../go.mod"), "\ntoolchain go")
	version, _, found := strings.Cut(version, "\n")
	if !found || version == "" {
		t.Fatal("go.mod names no toolchain")
	}
	return version
}

// TestToolchain: make and scripts/image build with the Go of go.mod or a newer one, also where GOTOOLCHAIN is local.
func TestToolchain(t *testing.T) {
	t.Parallel()
	wanted := "go" + toolchain(t)
	for name, tc := range map[string]struct {
		setting, own, fetched string
		want                  string
		warned                bool
	}{
		"local and older":             {setting: "local", own: "go1.26.8", fetched: wanted, want: wanted},
		"local, older, and no proxy":  {setting: "local", own: "go1.26.8", want: "local", warned: true},
		"local and the same":          {setting: "local", own: wanted, want: "local"},
		"local and newer":             {setting: "local", own: "go1.100.1", want: "local"},
		"Go fetches it automatically": {setting: "auto", own: "go1.26.8", want: "auto"},
		"another one is set":          {setting: "go1.99.0", own: "go1.26.8", want: "go1.99.0"},
	} {
		bin := t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "go"), []byte(`#!/bin/bash
case "$*" in
  "env GOTOOLCHAIN") echo "$SETTING" ;;
  "env GOVERSION") [ "$GOTOOLCHAIN" = local ] && echo "$OWN" ;;
  version) [ "$GOTOOLCHAIN" = "$FETCHED" ] ;;
  *) exit 2 ;;
esac
`), 0o700); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("../scripts/version", "go")
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"),
			"SETTING="+tc.setting, "OWN="+tc.own, "FETCHED="+tc.fetched)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != tc.want || (stderr.Len() > 0) != tc.warned {
			t.Errorf("%s: got %q, %v, %s; want %q", name, got, err, stderr.String(), tc.want)
		}
	}
	for _, file := range []string{"../Makefile", "../scripts/image"} {
		if !regexp.MustCompile(`GOTOOLCHAIN.*scripts/version go\)`).MatchString(read(t, file)) {
			t.Errorf("%s does not choose its Go by scripts/version", file)
		}
	}
}

// buildah is Buildah with a store of its own.
type buildah struct{ args []string }

func newBuildah(t *testing.T) buildah {
	t.Helper()
	for program, debian := range map[string]string{"buildah": "buildah", "/bin/busybox": "busybox-static"} {
		if _, err := exec.LookPath(program); err != nil {
			output(t, "scripts/apt", debian)
		}
	}
	dir := t.TempDir()
	b := buildah{args: []string{"buildah", "--root", dir + "/root", "--runroot", dir + "/run", "--storage-driver", "vfs"}}
	t.Cleanup(func() { _ = exec.Command(b.args[0], slices.Concat(b.args[1:], []string{"rm", "--all"})...).Run() })
	return b
}

func (b buildah) run(t *testing.T, args ...string) string {
	t.Helper()
	return output(t, b.args[0], slices.Concat(b.args[1:], args)...)
}

// golang makes an image with this machine's Go and a shell.
func (b buildah) golang(t *testing.T, name string) {
	t.Helper()
	container := b.run(t, "from", "scratch")
	b.run(t, "copy", "--quiet", container, goEnv(t, "GOROOT"), "/usr/local/go")
	b.run(t, "copy", "--quiet", container, "/bin/busybox", "/bin/sh")
	b.run(t, "config", "--env", "PATH=/usr/local/go/bin:/bin", "--env", "HOME=/root", "--env", "TMPDIR=/var/tmp",
		"--workingdir", "/var/tmp", container)
	b.run(t, "commit", "--quiet", container, name)
	b.run(t, "rm", container)
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	return output(t, "go", "env", name)
}

// output runs a program in the checkout, and returns what it prints to standard output.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = testkit.Root()
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, errors.String())
	}
	return strings.TrimSpace(string(out))
}
