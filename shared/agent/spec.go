// Package agent makes what it takes to get an agent onto an instance: the bundle, which holds what is secret, and the cloud-config
// by which the instance fetches the bundle once and runs the agent's container under systemd.
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
	Registry  *Registry     // nil when nobody has to log in
	JoinToken domain.Secret // "" when there is none
}

// Registry is the login to the image's registry.
type Registry struct {
	Username string
	Password domain.Secret
}

// What a Spec may have at most. An argument or a variable has to fit a line of the guest's tools, and all of it a row.
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

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,254}$`)

// Check refuses a Spec that no guest could run, naming the field.
func (s Spec) Check() error {
	if _, err := parseReference(s.Image); err != nil {
		return err
	}
	if err := s.checkCommand(); err != nil {
		return err
	}
	if err := s.checkEnv(); err != nil {
		return err
	}
	if r := s.Registry; r != nil {
		if err := r.check(); err != nil {
			return err
		}
	}
	if token := s.JoinToken.Reveal(); !line(token) || len(token) > maxSecret {
		return apperr.InvalidField("join_token", fmt.Sprintf("must be one line of text of at most %d bytes", maxSecret))
	}
	return nil
}

func (s Spec) checkCommand() error {
	if len(s.Command) > maxCommand {
		return apperr.InvalidField("command", fmt.Sprintf("must be at most %d arguments", maxCommand))
	}
	total := 0
	for n, argument := range s.Command {
		if total += len(argument); !text(argument) || len(argument) > maxValue {
			return apperr.InvalidField(fmt.Sprintf("command[%d]", n), fmt.Sprintf("must be text of at most %d bytes, without a NUL", maxValue))
		}
	}
	if total > maxTotal {
		return apperr.InvalidField("command", fmt.Sprintf("must be at most %d bytes in all", maxTotal))
	}
	return nil
}

func (s Spec) checkEnv() error {
	if len(s.Env) > maxEnv {
		return apperr.InvalidField("env", fmt.Sprintf("must be at most %d variables", maxEnv))
	}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value := s.Env[name]
		total += len(value)
		switch field := "env." + cut(name); {
		case !envName.MatchString(name):
			return apperr.InvalidField(field, "must have the name of a variable: letters, digits and _, and no digit first")
		case name == joinTokenEnv || name == instanceIDEnv:
			return apperr.InvalidField(field, "is set by cloudfn")
		case !line(value) || len(value) > maxValue:
			return apperr.InvalidField(field, fmt.Sprintf("must be one line of text of at most %d bytes: an env file carries no more", maxValue))
		}
	}
	if total > maxTotal {
		return apperr.InvalidField("env", fmt.Sprintf("must be at most %d bytes in all", maxTotal))
	}
	return nil
}

func (r Registry) check() error {
	if r.Username == "" || len(r.Username) > maxUsername || !line(r.Username) || strings.Contains(r.Username, ":") {
		return apperr.InvalidField("registry.username", fmt.Sprintf("must be one line of 1 to %d bytes without a colon", maxUsername))
	}
	if p := r.Password.Reveal(); p == "" || len(p) > maxSecret || !line(p) {
		return apperr.InvalidField("registry.password", fmt.Sprintf("must be one line of 1 to %d bytes", maxSecret))
	}
	return nil
}

// text says whether a guest's program can be given the argument.
func text(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// line says whether a line of a file can hold the value.
func line(s string) bool { return text(s) && !strings.ContainsAny(s, "\n\r") }

// cut bounds what of a request is repeated in its refusal.
func cut(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}
