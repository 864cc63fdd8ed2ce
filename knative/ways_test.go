package knative

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

// fakeKubectl and fakeKn record what scripts/deploy runs, and answer as a cluster does on which everything is ready.
const (
	fakeKubectl = `#!/bin/bash
cd "$(dirname "$0")"
case "$*" in
  kustomize*) cat rendered.yaml ;;
  *config-kourier*) exit 1 ;;
  config*) echo https://cluster.test ;;
  *"get -n cloudfn job migrate"*) echo Complete ;;
  *"get -n cloudfn services.serving"*) sed 's/$/|1|1|first|True||/' services 2> /dev/null ;;
  *"get -n cloudfn pingsources"*) sed 's/$/|1|1||True||/' pings 2> /dev/null ;;
  *apply*"-l app.kubernetes.io/component=source"*)
    file=${*#*-f } file=${file%% *}
    grep -q 'component: source' "$file" || { echo "error: no objects passed to apply" >&2; exit 1; } ;;
  *) echo "$*" >> kubectl.log ;;
esac
`
	fakeKn = `#!/bin/bash
cd "$(dirname "$0")"
echo "$*" >> kn.log
shift 2 # -n NAMESPACE
case "$*" in
  "service apply"*) cp "$5" "$3.applied"; grep -qsx "$3" services || echo "$3" >> services ;;
  "source ping describe"*) grep -qsx "$4" pings ;;
  "source ping create"*) echo "$4" >> pings ;;
esac
`
)

// TestDeployWithKn runs scripts/deploy twice with a kn and a kubectl that only record: there is no cluster. kn gets
// each function as kubectl would, and makes the PingSources that the manifests describe. The second time it changes
// them.
func TestDeployWithKn(t *testing.T) {
	t.Parallel()
	overlay := filepath.Join(testkit.Root(), "test", "e2e", "overlay")
	objects, dir := render(t, overlay), t.TempDir()
	rendered, err := exec.Command(testkit.Program(t, "kustomize"), "build", overlay).Output()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"kubectl": fakeKubectl, "kn": fakeKn, "rendered.yaml": string(rendered)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	deploy := func(with string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "deploy"), "up")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "WITH="+with, "OVERLAY="+overlay,
			"KUBECONFIG=/dev/null", "IMAGE=registry.test/cloudfn", "DEPLOY_TIMEOUT=20")
		out, err := cmd.CombinedOutput()
		if isKnown := with == "kn"; (err == nil) != isKnown {
			t.Fatalf("WITH=%s: %v\n%s", with, err, out)
		}
		return string(out)
	}
	if out := deploy("helm"); !strings.Contains(out, "WITH is helm: there are kubectl and kn") {
		t.Errorf("WITH=helm prints %s", out)
	}
	first := deploy("kn")
	log := read(t, dir, "kn.log")
	for name, service := range knativeServices(objects) {
		if !strings.Contains(first, "kn has applied "+name+"\n") || !strings.Contains(first, name+" is ready\n") {
			t.Errorf("there is no line of the progress of %s in %s", name, first)
		}
		applied := strings.ReplaceAll(read(t, dir, name+".applied"), "registry.test/cloudfn",
			"ko://github.com/cloudfn/cloudfn/functions")
		var got object
		if err := yaml.Unmarshal([]byte(applied), &got); err != nil || !reflect.DeepEqual(got, service) {
			t.Errorf("kn applies %s, %v\nthe manifest has %+v", applied, err, service)
		}
	}
	for name, source := range ofKind(objects, "PingSource") {
		made := "-n cloudfn source ping create " + name + " --schedule " + source.Spec.Schedule + " --sink ksvc:" +
			source.Spec.Sink.Ref.Name + " --ce-override cloudfnkey=" + source.Spec.CeOverrides.Extensions["cloudfnkey"]
		if !strings.Contains(log, made+"\n") {
			t.Errorf("kn was not called with %s", made)
		}
	}
	functions, sources := len(knativeServices(objects)), len(ofKind(objects, "PingSource"))
	for _, n := range []string{
		strconv.Itoa(functions) + " of " + strconv.Itoa(functions) + " services.serving.knative.dev are ready",
		strconv.Itoa(sources) + " of " + strconv.Itoa(sources) + " pingsources.sources.knative.dev are ready",
	} {
		if !strings.Contains(first, n) {
			t.Errorf("%q is not in %s", n, first)
		}
	}
	deploy("kn")
	log = strings.TrimPrefix(read(t, dir, "kn.log"), log)
	if strings.Contains(log, "ping create") || strings.Count(log, "source ping update") != sources ||
		strings.Count(log, "service apply") != functions {
		t.Errorf("the second time kn was called with %s", log)
	}
	for line := range strings.Lines(read(t, dir, "kubectl.log")) {
		if strings.HasPrefix(line, "apply") && strings.HasSuffix(line, "-l app.kubernetes.io/component=function\n") {
			t.Errorf("kubectl applies the functions: %s", line)
		}
	}
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// funcFile is what func deploys.
type funcFile struct {
	Name string
	Run  struct {
		Envs []struct{ Name, Value string }
	}

	Deploy struct {
		Labels  []struct{ Key, Value string }
		Options struct {
			Scale     struct{ Min, Max, Target, Utilization int }
			Resources struct {
				Limits struct{ Concurrency int }
			}
		}
	}
}

// TestFuncFiles holds the func.yaml of each function to its manifest: environment, labels and scale. func makes no
// event function, because it makes neither a PingSource nor a Service without a route from outside.
func TestFuncFiles(t *testing.T) {
	t.Parallel()
	services, hash := knativeServices(render(t, "local")), regexp.MustCompile(`-[a-z0-9]{10}$`)
	reference := regexp.MustCompile(`^\{\{ (?:configMap|secret):([a-z-]+) \}\}$`)
	for name, f := range declared(t) {
		path := filepath.Join(testkit.Root(), "functions", name, "func.yaml")
		if _, err := os.Stat(path); (err == nil) != (f.Kind == "http") {
			t.Errorf("%s is of kind %s: %v", name, f.Kind, err)
		}
		if f.Kind != "http" {
			continue
		}
		text := read(t, path)
		if top := read(t, testkit.Root(), "func.yaml"); name == "resources" && top != text {
			t.Error("func.yaml in the top folder differs from that of resources")
		}
		var file funcFile
		if err := yaml.UnmarshalStrict([]byte(text), &map[string]any{}); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal([]byte(text), &file); err != nil {
			t.Fatal(err)
		}
		template := services[name].Spec.Template
		container, want := template.Spec.Containers[0], []string{}
		for _, from := range container.EnvFrom {
			want = append(want, hash.ReplaceAllString(from.SecretRef.Name+from.ConfigMapRef.Name, ""))
		}
		for _, v := range container.Env {
			if v.Name == "DATABASE_URL" {
				want = append(want, hash.ReplaceAllString(v.ValueFrom.SecretKeyRef.Name, ""))
			}
		}
		var got []string
		for _, v := range file.Run.Envs {
			if found := reference.FindStringSubmatch(v.Value); found != nil {
				got = append(got, found[1])
			} else if v.Name != "FUNCTION_TARGET" || v.Value != name {
				t.Errorf("%s has the variable %+v", path, v)
			}
		}
		slices.Sort(want)
		if slices.Sort(got); !slices.Equal(got, want) || file.Name != name {
			t.Errorf("%s is named %s and reads %v, want %v", path, file.Name, got, want)
		}
		labels := map[string]string{}
		for _, l := range file.Deploy.Labels {
			labels[l.Key] = l.Value
		}
		if !reflect.DeepEqual(labels, template.Metadata.Labels) {
			t.Errorf("%s has the labels %v, want %v", path, labels, template.Metadata.Labels)
		}
		scale, annotations := file.Deploy.Options.Scale, template.Metadata.Annotations
		target := annotations["autoscaling.knative.dev/target"]
		if target == "" {
			target = strconv.Itoa(template.Spec.ContainerConcurrency)
		}
		if annotations["autoscaling.knative.dev/min-scale"] != strconv.Itoa(scale.Min) ||
			annotations["autoscaling.knative.dev/max-scale"] != strconv.Itoa(scale.Max) ||
			annotations["autoscaling.knative.dev/target-utilization-percentage"] != strconv.Itoa(scale.Utilization) ||
			target != strconv.Itoa(scale.Target) ||
			template.Spec.ContainerConcurrency != file.Deploy.Options.Resources.Limits.Concurrency {
			t.Errorf("%s scales by %+v, want %v", path, file.Deploy.Options, annotations)
		}
	}
}
