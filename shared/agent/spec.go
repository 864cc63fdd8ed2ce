// Package agent makes a deployment of an agent: the bundle, which contains the secrets, and the cloud-config by which
// the instance fetches the bundle once and runs the agent's container under systemd.
package agent

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Spec is an agent that is to run on an instance.
type Spec struct {
	ProjectID string
	Instance  uuid.UUID
	Image     string // an OCI reference, with a tag or a digest
	Command   []string
	Env       map[string]string
	Registry  *Registry     // nil without a login
	JoinToken domain.Secret // "" = none
}

// Registry is the login to the image's registry.
type Registry struct {
	Username string        `json:"username"`
	Password domain.Secret `json:"password"`
}

// The limits of a Spec. An argument or a variable has to fit a line of the guest's tools, and all of it a row.
const (
	maxImage    = 512
	maxCommand  = 100
	maxEnv      = 200
	maxValue    = 32 << 10
	maxTotal    = 256 << 10
	maxUsername = 255
	maxSecret   = 16 << 10
)

// The variables that every agent gets.
const (
	joinTokenEnv  = "JOIN_TOKEN"
	instanceIDEnv = "INSTANCE_ID"
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

const maxEnvName = 255

// Check returns everything that would keep a guest from running the Spec. Each error names its field, and repeats no
// value.
func (s Spec) Check() (faults []error) {
	reject := func(field, format string, args ...any) {
		faults = append(faults, apperr.InvalidField(field, fmt.Sprintf(format, args...)))
	}
	faults = append(faults, CheckContainer(s.Image, s.Command, s.Env)...)
	for _, name := range []string{instanceIDEnv, joinTokenEnv} {
		if _, isGiven := s.Env[name]; isGiven {
			reject("env."+name, "is set by cloudfn")
		}
	}
	if r := s.Registry; r != nil {
		if r.Username == "" || len(r.Username) > maxUsername || !line(r.Username) || strings.Contains(r.Username, ":") {
			reject("registry.username", "must be one line of 1 to %d bytes without a colon", maxUsername)
		}
		if p := r.Password.Reveal(); p == "" || len(p) > maxSecret || !line(p) {
			reject("registry.password", "must be one line of 1 to %d bytes", maxSecret)
		}
	}
	if token := s.JoinToken.Reveal(); !line(token) || len(token) > maxSecret {
		reject("join_token", "must be one line of text of at most %d bytes", maxSecret)
	}
	return faults
}

// CheckContainer returns everything that would keep a guest from running a container. Each error names its field:
// image, command or env.
func CheckContainer(image string, command []string, env map[string]string) (faults []error) {
	reject := func(field, format string, args ...any) {
		faults = append(faults, apperr.InvalidField(field, fmt.Sprintf(format, args...)))
	}
	if _, err := parseReference(image); err != nil {
		faults = append(faults, err)
	}
	faults = append(faults, CheckCommand("command", command)...)
	checkEnv(env, reject)
	return faults
}

type rejecter func(field, format string, args ...any)

// FullImage is an OCI reference with its registry, as Podman takes it without any configuration of its own. One that
// CheckContainer refuses stays as it is.
func FullImage(image string) string {
	full, err := parseReference(image)
	if err != nil {
		return image
	}
	return full.full
}

// CheckCommand returns what would keep a guest from passing the arguments of a field to a container.
func CheckCommand(field string, arguments []string) (faults []error) {
	reject := func(field, format string, args ...any) {
		faults = append(faults, apperr.InvalidField(field, fmt.Sprintf(format, args...)))
	}
	if len(arguments) > maxCommand {
		reject(field, "must be at most %d arguments", maxCommand)
	}
	total := 0
	for n, argument := range arguments {
		if total += len(argument); !text(argument) || len(argument) > maxValue {
			reject(fmt.Sprintf("%s[%d]", field, n), "must be text of at most %d bytes, without a NUL", maxValue)
		}
	}
	if total > maxTotal {
		reject(field, "must be at most %d bytes in all", maxTotal)
	}
	return faults
}

func checkEnv(env map[string]string, reject rejecter) {
	if len(env) > maxEnv {
		reject("env", "must be at most %d variables", maxEnv)
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		total += len(value)
		switch field := "env." + cut(name); {
		case len(name) > maxEnvName || !envName.MatchString(name):
			reject(field, "must have the name of a variable: letters, digits and _, and no digit first")
		case !line(value) || len(value) > maxValue:
			reject(field, "must be one line of text of at most %d bytes: an env file cannot contain more", maxValue)
		}
	}
	if total > maxTotal {
		reject("env", "must be at most %d bytes in all", maxTotal)
	}
}

// text reports whether a guest's program can be given the argument.
func text(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// line reports whether a line of a file can hold the value.
func line(s string) bool { return text(s) && !strings.ContainsAny(s, "\n\r") }

// cut limits how much of a request an error repeats.
func cut(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

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
