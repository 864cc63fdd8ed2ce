package agent

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	_ "embed" // the guest's script
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// Config is the part of the configuration that deployments need.
type Config struct {
	// URL at which instances reach the function agents when they boot, such as the gateway; when empty, deploy is
	// answered with 501.
	URL string `env:"AGENT_URL"`
}

// Validate rejects a Config that cannot work.
func (c Config) Validate() error {
	if c.URL == "" {
		return nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" || strings.ContainsAny(c.URL, " \"\\") {
		return errors.New("AGENT_URL must be an http or https URL without credentials and query, " +
			"such as https://cloudfn.example.com")
	}
	return nil
}

//go:embed setup.sh
var setup []byte

// The guest's script and its parameters. Both are in the guest's memory, and deleted when the script ends.
const (
	setupFile      = "/run/cloudfn-agent/setup"
	parametersFile = "/run/cloudfn-agent/parameters"
)

const (
	secretSize = 32
	saltSize   = 8     // of openssl enc
	iterations = 10000 // the default of openssl enc; the key is random, and needs none
)

// New makes a deployment and the user_data that installs it. Neither of them is readable alone: the bundle is stored
// encrypted, and only the user_data has its key; of the token in there a hash is stored.
func New(c Config, s Spec) (domain.Deployment, domain.Secret, error) {
	made := domain.Deployment{
		ID: uuid.Must(uuid.NewV7()), ProjectID: s.ProjectID, InstanceID: s.Instance, Image: s.Image,
	}
	if err := errors.Join(s.Check()...); err != nil {
		return made, "", err
	}
	image, err := parseReference(s.Image)
	if err != nil {
		return made, "", err
	}
	token, key := random(), random()
	if made.Bundle, err = encrypt(s.bundle(image), key); err != nil {
		return made, "", err
	}
	made.TokenHash = Hash(domain.Secret(token))
	sum := sha256.Sum256(made.Bundle)
	parameters := strings.Join([]string{
		strings.TrimRight(c.URL, "/"), made.ID.String(), token, key, hex.EncodeToString(sum[:]), image.full, "",
	}, "\n")
	userData, err := cloudConfig(parameters)
	return made, userData, err
}

// Hash is the stored form of a token.
func Hash(token domain.Secret) []byte {
	sum := sha256.Sum256([]byte(token.Reveal()))
	return sum[:]
}

func random() string {
	secret := make([]byte, secretSize)
	_, _ = rand.Read(secret) // never fails (Go 1.24)
	return base64.RawURLEncoding.EncodeToString(secret)
}

type file struct {
	Path        string `json:"path"`
	Permissions string `json:"permissions"`
	Encoding    string `json:"encoding"`
	Content     []byte `json:"content"` // base64 in JSON
}

// cloudConfig is user_data for cloud-init. It is written as JSON, which is YAML too, with all variable parts in base64.
func cloudConfig(parameters string) (domain.Secret, error) {
	config, err := json.Marshal(struct {
		Update   bool       `json:"package_update"`
		Packages []string   `json:"packages"`
		Files    []file     `json:"write_files"`
		Run      [][]string `json:"runcmd"`
	}{
		Update: true, Packages: []string{"ca-certificates", "curl", "openssl"},
		Files: []file{
			{Path: setupFile, Permissions: "0700", Encoding: "b64", Content: setup},
			{Path: parametersFile, Permissions: "0600", Encoding: "b64", Content: []byte(parameters)},
		},
		Run: [][]string{{"sh", setupFile}},
	})
	return domain.Secret("#cloud-config\n" + string(config) + "\n"), err
}

// bundle contains the agent's secrets: a line for each part, which is a word and a value in base64.
func (s Spec) bundle(image reference) []byte {
	var out bytes.Buffer
	part := func(kind string, content []byte) {
		fmt.Fprintf(&out, "%s %s\n", kind, base64.StdEncoding.EncodeToString(content))
	}
	var env bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		fmt.Fprintf(&env, "%s=%s\n", name, s.Env[name])
	}
	fmt.Fprintf(&env, "%s=%s\n", instanceIDEnv, s.Instance)
	if s.JoinToken != "" {
		fmt.Fprintf(&env, "%s=%s\n", joinTokenEnv, s.JoinToken.Reveal())
	}
	part("env", env.Bytes())
	part("login", s.login(image))
	for _, argument := range s.Command {
		part("argument", []byte(argument))
	}
	return out.Bytes()
}

// login is the file from which container runtimes read logins.
func (s Spec) login(image reference) []byte {
	type entry struct {
		Auth string `json:"auth"`
	}
	logins := map[string]entry{}
	if s.Registry != nil {
		login := s.Registry.Username + ":" + s.Registry.Password.Reveal()
		one := entry{base64.StdEncoding.EncodeToString([]byte(login))}
		logins[image.registry] = one
		if image.registry == dockerHub {
			logins["https://index.docker.io/v1/"] = one // as docker calls it
		}
	}
	content, _ := json.Marshal(map[string]any{"auths": logins}) //nolint:errchkjson // it has only strings
	return content
}

// encrypt does the same as `openssl enc -aes-256-cbc -pbkdf2 -md sha256`. As that does not authenticate, the guest
// compares the hash of the bundle first.
func encrypt(plain []byte, password string) ([]byte, error) {
	salt := make([]byte, saltSize)
	_, _ = rand.Read(salt)
	derived, err := pbkdf2.Key(sha256.New, password, salt, iterations, secretSize+aes.BlockSize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(derived[:secretSize])
	if err != nil {
		return nil, err
	}
	padding := aes.BlockSize - len(plain)%aes.BlockSize
	padded := append(bytes.Clone(plain), bytes.Repeat([]byte{byte(padding)}, padding)...)
	cipher.NewCBCEncrypter(block, derived[secretSize:]).CryptBlocks(padded, padded)
	return slices.Concat([]byte("Salted__"), salt, padded), nil
}
