package knative

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudfn/cloudfn/shared/limit"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestServices: what every function's pod must have, whoever writes the next one.
func TestServices(t *testing.T) {
	t.Parallel()
	objects := render(t, "local")
	sources, functions := ofKind(objects, "PingSource"), declared(t)
	var config map[string]string
	for _, c := range ofKind(objects, "ConfigMap") {
		if c.Data["EVENT_TIMEOUT"] != "" {
			config = c.Data
		}
	}
	for name, service := range knativeServices(objects) {
		pod := service.Spec.Template.Spec
		container := pod.Containers[0]
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken ||
			pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
			t.Errorf("%s gets a token or the environment of other Services", name)
		}
		if container.LivenessProbe != nil || container.ReadinessProbe != nil {
			t.Errorf("%s has a probe, which slows its cold start", name)
		}
		source, hasSource := sources[name]
		event := functions[name].Kind == "event"
		if pod.ContainerConcurrency == 0 ||
			service.Spec.Template.Metadata.Annotations["autoscaling.knative.dev/max-scale"] == "" {
			t.Errorf("%s has no concurrency or no max-scale", name)
		}
		if got, least := time.Duration(pod.TimeoutSeconds)*time.Second,
			longest(t, name, event, config)+drainSleep; got < least {
			t.Errorf("%s has timeoutSeconds %s: a pod that ends would not finish its requests, which takes %s", name,
				got, least)
		}
		scale := functions[name].Scale
		if most := scale.PerSource(); functions[name].Kind == "http" &&
			(most < 16 || most <= scale.Target || most >= scale.Concurrency) {
			t.Errorf("%s lets a source have %d requests in flight: a script of 16 must pass, one of more starts "+
				"another pod, and none fills a pod", name, most)
		}
		local := service.Metadata.Labels["networking.knative.dev/visibility"] == "cluster-local"
		if event != local || event != (pod.ServiceAccountName == "cloudfn-event") {
			t.Errorf(
				"%s: a function that events wake is cluster-local and runs as cloudfn-event, no other is and does",
				name,
			)
		}
		if hasSource != (functions[name].Schedule != "") {
			t.Errorf("%s has a PingSource: %t, its schedule is %q", name, hasSource, functions[name].Schedule)
		}
		// Without it a pod stays for 60 s after each event.
		if got := service.Spec.Template.Metadata.Annotations["autoscaling.knative.dev/window"]; (got == "10s") !=
			(len(functions[name].Due) > 0) {
			t.Errorf("%s has the window %q", name, got)
		}
		if hasSource && (source.Spec.Timezone != "UTC" || source.Spec.Schedule != string(functions[name].Schedule) ||
			source.Spec.Sink.Ref.Name != name ||
			source.Spec.CeOverrides.Extensions["cloudfnkey"] != "local-event-key") {
			t.Errorf("the PingSource of %s is %+v", name, source.Spec)
		}
	}
}

// drainSleep is for how long queue-proxy still lets requests in after its pod got SIGTERM (serving v0.50,
// pkg/queue/sharedmain: drainSleepDuration).
const drainSleep = 30 * time.Second

// longest is how long a request to the function may take. The work of an event is canceled when its pod ends.
func longest(t *testing.T, name string, event bool, config map[string]string) time.Duration {
	t.Helper()
	if event {
		return duration(t, config["EVENT_TIMEOUT"])
	}
	if name == "gateway" {
		return duration(t, config["REQUEST_TIMEOUT"]) + 15*time.Second // for a copy that has to start first
	}
	return duration(t, config["REQUEST_TIMEOUT"])
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

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

// TestDeployRefusesPlaceholders: `make deploy` deploys no manifests that name no proxies, and says where that is.
func TestDeployRefusesPlaceholders(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	kubectl := "#!/bin/sh\n[ \"$1\" = kustomize ] && exec '" + testkit.Program(t, "kustomize") + "' build \"$2\"\n"
	err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o755)
	if err != nil {
		t.Fatal(err)
	}
	for overlay, want := range map[string]string{
		"knative/base": "TRUSTED_PROXIES: 127.0.0.0/8,CHANGE-ME", "production": "placeholders", "local": "",
	} {
		cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "deploy"), "render")
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "OVERLAY="+overlay, "IMAGE=none")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if isRefused := err != nil; isRefused != (want != "") || isRefused && len(out) > 0 ||
			!strings.Contains(errs.String(), want) {
			t.Errorf("%s: got %v and %d bytes: %s", overlay, err, len(out), errs.Bytes())
		}
	}
}
