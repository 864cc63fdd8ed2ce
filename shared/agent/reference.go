package agent

import (
	"regexp"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
)

// referenceForm is the grammar of a reference in github.com/distribution/reference (reference.go): name [":" tag]
// ["@" digest], and of the digests those that the OCI image specification registers (descriptor.md). A repetition that
// is bounded by a hundred would take a quarter of a megabyte in each process; so the lengths are checked apart.
var referenceForm = regexp.MustCompile(`^` +
	`(?:(?P<domain>` + hostForm + `(?::[0-9]{1,5})?)/)?` +
	`(?P<path>` + pathForm + `(?:/` + pathForm + `)*)` +
	`(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]*))?` +
	`(?:@(?P<digest>sha(?:256|512):[a-f0-9]+))?$`)

const (
	label    = `[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?`
	hostForm = `(?:` + label + `(?:\.` + label + `)*|\[[a-fA-F0-9:]+\])`
	pathForm = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`
)

const (
	maxName   = 255 // of domain and path together
	maxTag    = 128
	dockerHub = "docker.io"
)

// isDigest reports whether a digest has as many digits as its algorithm gives.
func isDigest(digest string) bool {
	algorithm, digits, _ := strings.Cut(digest, ":")
	return len(digits) == map[string]int{"sha256": 64, "sha512": 128}[algorithm]
}

// reference is an image as a container runtime takes it without any configuration of its own.
type reference struct {
	registry string // domain, with its port
	full     string // the whole, with the registry in it
}

// parseReference reads a reference. As for every client, one without a registry is of Docker Hub. A tag or a digest is
// required, because the default tag, latest, does not tell which version runs.
func parseReference(text string) (reference, error) {
	rejection := apperr.InvalidField("image",
		"must be a reference of an OCI image with a tag or a digest, such as registry.example.com/team/agent:1.2")
	found := referenceForm.FindStringSubmatch(text)
	if len(text) > maxImage || found == nil {
		return reference{}, rejection
	}
	registry, path, tag, digest := found[1], found[2], found[3], found[4]
	if tag == "" && digest == "" || len(tag) > maxTag || digest != "" && !isDigest(digest) {
		return reference{}, rejection
	}
	// The first part is a registry only if it looks like no part of a path (reference.splitDockerDomain).
	isHost := strings.ContainsAny(registry, ".:[") || registry == "localhost" || strings.ToLower(registry) != registry
	if registry != "" && !isHost {
		registry, path = "", registry+"/"+path
	}
	if registry == "" || registry == "index.docker.io" {
		registry = dockerHub
	}
	if registry == dockerHub && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	if len(registry)+1+len(path) > maxName {
		return reference{}, rejection
	}
	full := registry + "/" + path
	switch { // docker takes both together, and podman the digest only
	case digest != "":
		full += "@" + digest
	default:
		full += ":" + tag
	}
	return reference{registry: registry, full: full}, nil
}
