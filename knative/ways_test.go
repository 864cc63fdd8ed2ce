package knative

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/shared/testkit"
)

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
