package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// full is a Spec with all fields, and values that break whatever does not quote them.
func full() Spec {
	return Spec{
		ProjectID: "p1", Instance: uuid.New(), Image: "registry.example.com:5000/team/agent:1.2",
		Command:  []string{"run", "", "--x=$(touch /tmp/x)", "a\nb\n", `"'\`, "runcmd: [reboot]", "é ✓"},
		Env:      map[string]string{"A": "canary-env # $HOME `id`", "B": `"quoted" 'too'`, "EMPTY": "", "C": "x=y"},
		Registry: &Registry{Username: "canary-user", Password: "canary-password"}, JoinToken: "canary-join",
	}
}

var config = Config{URL: "https://cloudfn.example.com/"}

// parameters are the lines of the guest's parameters file.
type parameters struct{ url, deployment, token, key, sum, image string }

// read parses user_data like cloud-init.
func read(t *testing.T, userData domain.Secret) (p parameters, files map[string]file) {
	t.Helper()
	body, ok := strings.CutPrefix(userData.Reveal(), "#cloud-config\n")
	var c struct {
		Files []file `json:"write_files"`
	}
	if err := json.Unmarshal([]byte(body), &c); err != nil || !ok {
		t.Fatalf("%v in %s", err, userData.Reveal())
	}
	files = map[string]file{}
	for _, f := range c.Files {
		files[f.Path] = f
	}
	lines := strings.Split(string(files[parametersFile].Content), "\n")
	if len(lines) != 7 || lines[6] != "" {
		t.Fatalf("the parameters are %q", lines)
	}
	return parameters{lines[0], lines[1], lines[2], lines[3], lines[4], lines[5]}, files
}

// TestUserDataIsValid by the schema of cloud-init itself.
func TestUserDataIsValid(t *testing.T) {
	t.Parallel()
	_, userData, err := New(config, full())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text string
		ok   bool
	}{
		"ours":         {userData.Reveal(), true},
		"invalid data": {strings.Replace(userData.Reveal(), `"packages":[`, `"packages":[7,`, 1), false},
	} {
		path := filepath.Join(t.TempDir(), "user-data")
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		cloudInit := filepath.Join(testkit.Root(), "scripts", "cloud-init")
		out, err := exec.CommandContext(t.Context(), cloudInit, "schema", "--config-file", path).CombinedOutput()
		if valid := bytes.Contains(out, []byte("Valid cloud-config")); valid != tc.ok || (err == nil) != tc.ok {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if n := len(base64.StdEncoding.EncodeToString([]byte(userData.Reveal()))); n > 65535 {
		t.Errorf("the user_data have %d bytes, and Nova accepts 65535", n)
	}
}

// TestSecretsOfADeployment are not in the user_data, and the stored bundle opens with the key in the user_data only.
func TestSecretsOfADeployment(t *testing.T) {
	t.Parallel()
	spec := full()
	made, userData, err := New(config, spec)
	if err != nil {
		t.Fatal(err)
	}
	p, files := read(t, userData)
	if files[parametersFile].Permissions != "0600" || files[setupFile].Permissions != "0700" || len(files) != 2 {
		t.Errorf("the files are %v", files)
	}
	if p.url != "https://cloudfn.example.com" || p.deployment != made.ID.String() || p.image != spec.Image {
		t.Errorf("the parameters are %+v", p)
	}
	isHashed := bytes.Equal(made.TokenHash, Hash(domain.Secret(p.token)))
	if !isHashed || len(p.token) != 43 || len(p.key) != 43 || p.token == p.key {
		t.Error("the token or the key is wrong")
	}
	if sum := sha256.Sum256(made.Bundle); hex.EncodeToString(sum[:]) != p.sum {
		t.Error("the hash is not that of the bundle")
	}
	for path, f := range files {
		if bytes.Contains(f.Content, []byte("canary")) {
			t.Errorf("%s contains a secret in clear", path)
		}
	}
	stored, _ := json.Marshal(made)
	for _, secret := range []string{"canary", p.token, p.key} {
		if strings.Contains(string(stored), secret) || bytes.Contains(made.Bundle, []byte(secret)) {
			t.Error("the deployment contains a secret in clear")
		}
	}
	plain := opened(t, made.Bundle, p.key)
	var kinds []string
	for line := range strings.Lines(plain) {
		kind, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		content, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			t.Error(err)
		}
		if kind == "argument" && string(content) != spec.Command[len(kinds)-2] {
			t.Errorf("argument %d is %q", len(kinds)-2, content)
		}
		kinds = append(kinds, kind)
	}
	want := append([]string{"env", "login"}, slices.Repeat([]string{"argument"}, len(spec.Command))...)
	if !slices.Equal(kinds, want) {
		t.Errorf("the bundle has %v", kinds)
	}
	again, other, _ := New(config, spec)
	if bytes.Equal(again.Bundle, made.Bundle) || other.Reveal() == userData.Reveal() {
		t.Error("two deployments have the same secrets")
	}
}

// opened decrypts a bundle by openssl.
func opened(t *testing.T, bundle []byte, key string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "openssl", "enc", "-d", "-aes-256-cbc", "-pbkdf2", "-iter", "10000",
		"-md", "sha256", "-pass", "pass:"+key)
	cmd.Stdin = bytes.NewReader(bundle)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestReferences(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("ab", 32)
	for text, want := range map[string]reference{
		"nginx:1.27":                           {"docker.io", "docker.io/library/nginx:1.27"},
		"team/agent:v1":                        {"docker.io", "docker.io/team/agent:v1"},
		"docker.io/nginx:1":                    {"docker.io", "docker.io/library/nginx:1"},
		"index.docker.io/team/a:1":             {"docker.io", "docker.io/team/a:1"},
		"localhost/a:1":                        {"localhost", "localhost/a:1"},
		"Registry/a:1":                         {"Registry", "Registry/a:1"},
		"ghcr.io/a/b__c/d-e.f@" + digest:       {"ghcr.io", "ghcr.io/a/b__c/d-e.f@" + digest},
		"ghcr.io/a:1@" + digest:                {"ghcr.io", "ghcr.io/a@" + digest},
		"10.0.0.1:5000/a:1":                    {"10.0.0.1:5000", "10.0.0.1:5000/a:1"},
		"[2001:db8::1]:5000/a:1":               {"[2001:db8::1]:5000", "[2001:db8::1]:5000/a:1"},
		"a@sha512:" + strings.Repeat("0", 128): {"docker.io", "docker.io/library/a@sha512:" + strings.Repeat("0", 128)},
	} {
		if got, err := parseReference(text); err != nil || got != want {
			t.Errorf("%s: got %+v %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "nginx", "team/agent", "registry.example.com:5000/a", "Nginx:1", "a b:1", "a:1\n", "a:1 --privileged",
		"--privileged", "-a:1", "a:-1", "a/:1", "/a:1", "a//b:1", "a:", "a:" + strings.Repeat("x", 129),
		"a@sha256:abcd",
		"a@md5:" + strings.Repeat("a", 32), "a:$(id)", "a:1;b", "https://ghcr.io/a:1", "user@ghcr.io/a:1", "a_-b:1", "é:1",
		"a\x00:1", strings.Repeat("a/", 200) + "a:1", "x.y/" + strings.Repeat("a", 255) + ":1",
		"a@SHA256:" + strings.Repeat("ab", 32),
	} {
		if got, err := parseReference(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

// TestNewRejects bad fields by name.
func TestNewRejects(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for n := range 201 {
		many["V"+strings.Repeat("x", n)] = ""
	}
	long := strings.Repeat("x", 32<<10)
	for _, tc := range []struct {
		field  string
		change func(*Spec)
	}{
		{"image", func(s *Spec) { s.Image = "nginx" }},
		{"command[1]", func(s *Spec) { s.Command = []string{"a", "b\x00c"} }},
		{"command[0]", func(s *Spec) { s.Command = []string{long + "x"} }},
		{"command[0]", func(s *Spec) { s.Command = []string{"\xff"} }},
		{"command", func(s *Spec) { s.Command = make([]string, 101) }},
		{"command", func(s *Spec) { s.Command = slices.Repeat([]string{long}, 9) }},
		{"env", func(s *Spec) { s.Env = many }},
		{"env.A B", func(s *Spec) { s.Env = map[string]string{"A B": ""} }},
		{"env.1A", func(s *Spec) { s.Env = map[string]string{"1A": ""} }},
		{"env.", func(s *Spec) { s.Env = map[string]string{"": ""} }},
		{"env.A=B", func(s *Spec) { s.Env = map[string]string{"A=B": ""} }},
		{"env.A\nB", func(s *Spec) { s.Env = map[string]string{"A\nB": ""} }},
		{"env.A", func(s *Spec) { s.Env = map[string]string{"A": "x\ny"} }},
		{"env.A", func(s *Spec) { s.Env = map[string]string{"A": "x\r"} }},
		{"env.A", func(s *Spec) { s.Env = map[string]string{"A": "x\x00"} }},
		{"env.A", func(s *Spec) { s.Env = map[string]string{"A": long + "x"} }},
		{"env.JOIN_TOKEN", func(s *Spec) { s.Env = map[string]string{"JOIN_TOKEN": "x"} }},
		{"env.INSTANCE_ID", func(s *Spec) { s.Env = map[string]string{"INSTANCE_ID": "x"} }},
		{"registry.username", func(s *Spec) { s.Registry = &Registry{Password: "x"} }},
		{"registry.username", func(s *Spec) { s.Registry = &Registry{Username: "a:b", Password: "x"} }},
		{"registry.password", func(s *Spec) { s.Registry = &Registry{Username: "a"} }},
		{"registry.password", func(s *Spec) { s.Registry = &Registry{Username: "a", Password: "canary\n"} }},
		{"join_token", func(s *Spec) { s.JoinToken = "canary\nX=1" }},
	} {
		spec := full()
		tc.change(&spec)
		_, _, err := New(config, spec)
		e := apperr.As(err)
		isNamed := len(e.Fields) == 1 && e.Fields[0].Field == tc.field
		if e.Code != apperr.Invalid || !isNamed || strings.Contains(e.Error(), "canary") {
			t.Errorf("%s: %v %+v", tc.field, err, e.Fields)
		}
	}
	if faults := full().Check(); len(faults) > 0 {
		t.Error(faults)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "http://127.0.0.1:8080", "https://x.example.com/base/"} {
		if err := (Config{URL: url}).Validate(); err != nil {
			t.Error(err)
		}
	}
	for _, url := range []string{
		"x", "ftp://x", "https://", "https://u:canary@x", "https://x?canary", "https://x/#canary", "https://x/a b",
		"https://x/\ncanary",
	} {
		err := Config{URL: url}.Validate()
		if err == nil || !strings.Contains(err.Error(), "AGENT_URL") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
