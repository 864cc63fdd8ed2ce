package knative

import (
	"testing"
	"time"
)

// TestServices: what every function's pod must have, no matter who writes the next one.
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
