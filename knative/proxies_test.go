package knative

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/limit"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestTrustedProxies: no manifest trusts networks that have clients. An overlay that names none has a placeholder,
// which neither `make deploy` nor a function accepts.
func TestTrustedProxies(t *testing.T) {
	t.Parallel()
	trusted := func(overlay string) string {
		for name, c := range ofKind(render(t, overlay), "ConfigMap") {
			if strings.HasPrefix(name, "cloudfn-") && c.Data["TRUSTED_PROXIES"] != "" {
				return c.Data["TRUSTED_PROXIES"]
			}
		}
		return ""
	}
	const placeholder = "127.0.0.0/8,CHANGE-ME"
	for overlay, want := range map[string]string{
		"../base": placeholder, "production": placeholder, "local": "127.0.0.0/8,10.244.0.0/24",
	} {
		list := trusted(overlay)
		if list != want {
			t.Errorf("%s trusts %q, want %q", overlay, list, want)
		}
		limits, err := limit.New(limit.Config{TrustedProxies: strings.Split(list, ","), Address: 1, Project: 1}, 1)
		if want == placeholder {
			if err == nil {
				t.Errorf("%s: a function accepts the placeholder", overlay)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, client := range []string{"10.20.30.40", "172.16.1.1", "192.168.1.1", "100.64.0.1", "fd00::1"} {
			r := &http.Request{RemoteAddr: "127.0.0.1:999", Header: http.Header{
				"X-Forwarded-For": {"203.0.113.9, " + client + ", 10.244.0.7"},
			}}
			if got := limits.Client(r); got != client {
				t.Errorf("%s: a client at %s passes for %s", overlay, client, got)
			}
		}
	}
}

// TestDeployRefusesPlaceholders: `make deploy` deploys no manifests with placeholders, and says where they are.
func TestDeployRefusesPlaceholders(t *testing.T) {
	t.Parallel()
	for overlay, want := range map[string]string{
		"production": "placeholders: CONNECTION_PUBLIC_KEY: CHANGE-ME;", "local": "",
	} {
		manifests, errs, _ := deploy(t, "render", overlay)
		if (manifests == "") != (want != "") || !strings.Contains(errs, want) {
			t.Errorf("%s: got %d bytes: %s", overlay, len(manifests), errs)
		}
	}
}

// TestDeployNeedsProxies: `make deploy` applies no overlay of the operator's own that leaves TRUSTED_PROXIES out or
// empty, says what to set, and still removes what was deployed from one. 127.0.0.0/8 is for clusters without a proxy.
func TestDeployNeedsProxies(t *testing.T) {
	t.Parallel()
	const direct = "{behavior: replace, literals: [LOG_LEVEL=INFO]}\n" + `patches:
  - target: {group: serving.knative.dev, kind: Service, name: '%s'}
    patch: |
      - op: add
        path: /spec/template/spec/containers/0/env
        value: [{name: TRUSTED_PROXIES, value: %q}]
`
	none := "gives functions no TRUSTED_PROXIES: agents callbacks clock .... Set it in the ConfigMap cloudfn"
	for name, c := range map[string]struct{ config, want string }{
		"missing":     {"{behavior: replace, literals: [LOG_LEVEL=INFO]}", none},
		"empty":       {"{behavior: merge, literals: [TRUSTED_PROXIES=]}", none},
		"blank":       {"{behavior: merge, literals: ['TRUSTED_PROXIES= , ']}", none},
		"no proxy":    {"{behavior: merge, literals: [TRUSTED_PROXIES=127.0.0.0/8]}", ""},
		"in Services": {fmt.Sprintf(direct, ".*", "10.2.0.0/16"), ""},
		"in all but one": {
			fmt.Sprintf(direct, "[^s].*|se[^r].*|stats", "10.2.0.0/16"), "no TRUSTED_PROXIES: servers. Set it",
		},
		"empty in one": {strings.Replace(fmt.Sprintf(direct, "nodes", ""), "replace", "merge", 1), ": nodes. Set it"},
		"a placeholder": {
			"{behavior: merge, literals: ['TRUSTED_PROXIES=127.0.0.0/8,CHANGE-ME']}",
			"placeholders: TRUSTED_PROXIES: 127.0.0.0/8,CHANGE-ME",
		},
		"unchanged": {"{behavior: merge, literals: [LOG_LEVEL=INFO]}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overlay := ownOverlay(t, c.config)
			for _, verb := range []string{"render", "up"} {
				_, errs, calls := deploy(t, verb, overlay)
				if isRefused := strings.Contains(errs, "TRUSTED_PROXIES"); isRefused != (c.want != "") ||
					!strings.Contains(errs, c.want) {
					t.Errorf("%s prints %s", verb, errs)
				}
				if c.want != "" && (strings.Contains(calls, "apply") || !strings.Contains(errs, "127.0.0.0/8")) {
					t.Errorf("%s applies something, or does not say what to set: %s%s", verb, errs, calls)
				}
			}
			_, errs, calls := deploy(t, "down", overlay)
			if !strings.Contains(errs, "namespace cloudfn is removed") || strings.Count(calls, "delete -f") != 3 {
				t.Errorf("down prints %s and calls %s", errs, calls)
			}
		})
	}
}

// ownOverlay makes an overlay of the operator's own, which is the local one with another ConfigMap.
func ownOverlay(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	local, err := filepath.Rel(dir, filepath.Join(testkit.Root(), "knative", "overlays", "local"))
	if err != nil {
		t.Fatal(err)
	}
	text := "resources: [" + local + "]\nconfigMapGenerator:\n  - " +
		strings.Replace(config, "{", "{name: cloudfn, namespace: cloudfn, ", 1) + "\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// deploy runs scripts/deploy with the kustomize that CI uses and a kubectl that only records: there is no cluster.
// calls are those of kubectl. up ends with the first objects that it applies, because that fails.
func deploy(t *testing.T, verb, overlay string) (manifests, errs, calls string) {
	t.Helper()
	bin := t.TempDir()
	kubectl := `#!/bin/bash
case "$1" in
  kustomize) exec '` + testkit.Program(t, "kustomize") + `' build "$2" ;;
  apply) echo "error: there is no cluster" >&2; result=1 ;;
esac
echo "$*" >> "$(dirname "$0")/calls"
exit ${result:-0}
`
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "deploy"), verb)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "OVERLAY="+overlay, "IMAGE=none",
		"KUBECONFIG=/dev/null")
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	recorded, err := os.ReadFile(filepath.Join(bin, "calls"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(out), log.String(), string(recorded)
}
