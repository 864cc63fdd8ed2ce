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
	if _, err := parseReference(s.Image); err != nil {
		faults = append(faults, err)
	}
	s.checkCommand(reject)
	s.checkEnv(reject)
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

type rejecter func(field, format string, args ...any)

func (s Spec) checkCommand(reject rejecter) {
	if len(s.Command) > maxCommand {
		reject("command", "must be at most %d arguments", maxCommand)
	}
	total := 0
	for n, argument := range s.Command {
		if total += len(argument); !text(argument) || len(argument) > maxValue {
			reject(fmt.Sprintf("command[%d]", n), "must be text of at most %d bytes, without a NUL", maxValue)
		}
	}
	if total > maxTotal {
		reject("command", "must be at most %d bytes in all", maxTotal)
	}
}

func (s Spec) checkEnv(reject rejecter) {
	if len(s.Env) > maxEnv {
		reject("env", "must be at most %d variables", maxEnv)
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value := s.Env[name]
		total += len(value)
		switch field := "env." + cut(name); {
		case len(name) > maxEnvName || !envName.MatchString(name):
			reject(field, "must have the name of a variable: letters, digits and _, and no digit first")
		case name == joinTokenEnv || name == instanceIDEnv:
			reject(field, "is set by cloudfn")
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
