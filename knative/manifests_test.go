// Package knative holds the manifests; this is their test, which needs no cluster.
package knative

import (
	"bytes"
	"cmp"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// object is any Kubernetes object, as far as the tests look into it.
type object struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		Template struct {
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     struct {
				ServiceAccountName           string
				AutomountServiceAccountToken *bool
				EnableServiceLinks           *bool
				ContainerConcurrency         int
				TimeoutSeconds               int
				Containers                   []struct {
					EnvFrom                       []struct{ SecretRef, ConfigMapRef struct{ Name string } }
					Env                           []struct{ Name, Value string }
					LivenessProbe, ReadinessProbe map[string]any
				}
			}
		}
		PodSelector struct{ MatchLabels map[string]string }
		PolicyTypes []string
		Egress      []struct{ To []any }
		Ingress     []struct{ Ports []struct{ Port int } }
		Schedule    string
		Timezone    string
		Sink        struct{ Ref struct{ Kind, Name string } }
		CeOverrides struct{ Extensions map[string]string }
	}
	Data map[string]string
}

// render builds an overlay, or a folder, with the kustomize that CI uses.
func render(t *testing.T, overlay string) (objects []object) {
	t.Helper()
	var errs bytes.Buffer
	if !filepath.IsAbs(overlay) {
		overlay = filepath.Join("overlays", overlay)
	}
	cmd := exec.Command("go", "run", "sigs.k8s.io/kustomize/kustomize/v5@v5.8.2", "build", overlay)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize: %v %s", err, errs.Bytes())
	}
	for document := range strings.SplitSeq(string(out), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(document), &o); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		objects = append(objects, o)
	}
	return objects
}

func ofKind(objects []object, kind string) map[string]object {
	found := map[string]object{}
	for _, o := range objects {
		if o.Kind == kind {
			found[o.Metadata.Name] = o
		}
	}
	return found
}

// reaches is where each function may connect to, besides DNS and the telemetry collector; by the policies' names.
var reaches = map[string][]string{
	"gateway":        {"egress-functions"},
	"resources":      {"egress-compute", "egress-functions", "egress-identity", "egress-image", "egress-network", "egress-postgres"},
	"launch":         {"egress-compute", "egress-functions", "egress-identity", "egress-image", "egress-network", "egress-placement", "egress-postgres"},
	"servers":        {"egress-compute", "egress-functions", "egress-identity", "egress-postgres"},
	"stats":          {"egress-identity", "egress-postgres"},
	"callbacks":      {"egress-functions", "egress-identity", "egress-postgres"},
	"connections":    {"egress-compute", "egress-functions", "egress-identity", "egress-postgres"},
	"agents":         {"egress-postgres"},
	"console":        {"egress-functions", "egress-identity", "egress-postgres"},
	"collect-stats":  {"egress-compute", "egress-functions", "egress-identity", "egress-postgres"},
	"poll-instances": {"egress-compute", "egress-functions", "egress-identity", "egress-postgres"},
	"run-connections": {
		"egress-compute", "egress-functions", "egress-identity", "egress-image", "egress-network", "egress-postgres",
	},
	"deliver-events": {"egress-callbacks", "egress-postgres"},
	"migrate":        {"egress-postgres"},
}

// holds is which secrets each function has in its environment, without the hashes of their names.
var holds = map[string][]string{
	"gateway": nil, "resources": {"cloudfn-database", "cloudfn-events"}, "stats": {"cloudfn-database"}, "agents": {"cloudfn-database"}, "console": {"cloudfn-database"},
	"launch":          {"cloudfn-database", "cloudfn-events"},
	"servers":         {"cloudfn-database", "cloudfn-events"},
	"callbacks":       {"cloudfn-database", "cloudfn-events"},
	"connections":     {"cloudfn-database", "cloudfn-events"},
	"collect-stats":   {"cloudfn-database-owner", "cloudfn-events", "cloudfn-openstack"},
	"poll-instances":  {"cloudfn-database-events", "cloudfn-events", "cloudfn-openstack"},
	"run-connections": {"cloudfn-connections", "cloudfn-database-events", "cloudfn-events", "cloudfn-openstack-delegate"},
	"deliver-events":  {"cloudfn-database-events", "cloudfn-events", "cloudfn-seal"},
}

// TestNetworkPolicies: everything is denied, and each pod is selected by the egress policies that it needs and by no
// other, each of which says where to. The policies that select every pod (DNS, telemetry) are not in the table.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	for _, overlay := range []string{"local", "production"} {
		objects := render(t, overlay)
		policies := ofKind(objects, "NetworkPolicy")
		if deny := policies["deny-all"]; len(deny.Spec.PodSelector.MatchLabels) != 0 || !slices.Equal(deny.Spec.PolicyTypes, []string{"Ingress", "Egress"}) || deny.Spec.Egress != nil || deny.Spec.Ingress != nil {
			t.Errorf("%s: deny-all is %+v", overlay, deny.Spec)
		}
		pods := ofKind(objects, "Service")
		maps.Copy(pods, ofKind(objects, "Job"))
		for name, pod := range pods {
			var got []string
			for policy, p := range policies {
				if len(p.Spec.PodSelector.MatchLabels) == 0 || !selects(p, pod.Spec.Template.Metadata.Labels) {
					continue
				}
				if got = append(got, policy); len(p.Spec.Egress) == 0 {
					t.Errorf("%s: %s lets %s nowhere", overlay, policy, name)
				}
				for _, rule := range p.Spec.Egress {
					if len(rule.To) == 0 {
						t.Errorf("%s: %s lets %s to any address", overlay, policy, name)
					}
				}
			}
			if slices.Sort(got); !slices.Equal(got, reaches[name]) {
				t.Errorf("%s: %s may reach %v, want %v", overlay, name, got, reaches[name])
			}
		}
		ingress := policies["ingress-from-knative"].Spec.Ingress
		if len(ingress) != 1 || len(ingress[0].Ports) == 0 || slices.ContainsFunc(ingress[0].Ports, func(p struct{ Port int }) bool { return p.Port == 8080 }) {
			t.Errorf("%s: it must be queue-proxy that is reached, not the functions' own port: %+v", overlay, ingress)
		}
	}
}

func selects(policy object, labels map[string]string) bool {
	for k, v := range policy.Spec.PodSelector.MatchLabels {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// TestConnectionsFitPostgres: all pods at their most stay under Postgres's own default of 100 connections, three of which
// it keeps for itself.
func TestConnectionsFitPostgres(t *testing.T) {
	t.Parallel()
	objects := render(t, "production")
	var perPod int
	for _, config := range ofKind(objects, "ConfigMap") {
		perPod, _ = strconv.Atoi(config.Data["DATABASE_MAX_CONNS"])
	}
	total := 0
	for name, service := range ofKind(objects, "Service") {
		most, err := strconv.Atoi(service.Spec.Template.Metadata.Annotations["autoscaling.knative.dev/max-scale"])
		if err != nil {
			t.Errorf("%s has no max-scale", name)
		}
		if service.Spec.Template.Metadata.Labels["cloudfn.dev/egress-postgres"] == "true" {
			total += most * cmp.Or(own(service, "DATABASE_MAX_CONNS"), perPod)
		}
	}
	if total == 0 || total > 97 {
		t.Errorf("they may open %d connections", total)
	}
}

// own is a number that a Service sets for itself; 0 when it does not.
func own(service object, variable string) (number int) {
	for _, v := range service.Spec.Template.Spec.Containers[0].Env {
		if v.Name == variable {
			number, _ = strconv.Atoi(v.Value)
		}
	}
	return number
}

// TestSecrets: each function holds the secrets that it needs, and those that serve HTTP hold nothing that opens what is sealed, or
// that logs in to the cloud, wherever in their environment.
func TestSecrets(t *testing.T) {
	t.Parallel()
	for _, overlay := range []string{"local", "production"} {
		objects := render(t, overlay)
		secrets, configs := ofKind(objects, "Secret"), ofKind(objects, "ConfigMap")
		for name, service := range ofKind(objects, "Service") {
			container := service.Spec.Template.Spec.Containers[0]
			var got, variables []string
			for _, from := range container.EnvFrom {
				variables = slices.AppendSeq(variables, maps.Keys(configs[from.ConfigMapRef.Name].Data))
				if secret := from.SecretRef.Name; secret != "" {
					got = append(got, secret[:strings.LastIndex(secret, "-")])
					variables = slices.AppendSeq(variables, maps.Keys(secrets[secret].Data))
				}
			}
			for _, v := range container.Env {
				variables = append(variables, v.Name)
			}
			if slices.Sort(got); !slices.Equal(got, holds[name]) {
				t.Errorf("%s: %s holds %v, want %v", overlay, name, got, holds[name])
			}
			if !slices.Contains(variables, "OS_AUTH_URL") {
				t.Errorf("%s: %s gets only %v", overlay, name, variables)
			}
			if service.Spec.Template.Spec.ServiceAccountName != "cloudfn-http" {
				continue
			}
			for _, v := range variables {
				if opens.MatchString(v) {
					t.Errorf("%s: %s serves HTTP, and has %s", overlay, name, v)
				}
			}
		}
	}
}

// opens is what no function that serves HTTP may have: a key that opens what is sealed, or an account of the cloud.
var opens = regexp.MustCompile("PRIVATE_KEY|PASSWORD|SECRET|OS_USERNAME|OS_USER_ID")

// TestTheComponentForOtherClouds lets the two functions that call other clouds reach them, and no other.
func TestTheComponentForOtherClouds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	knative, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	overlay := "resources: [" + knative + "/overlays/production]\ncomponents: [" + knative + "/components/clouds]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	objects := render(t, dir)
	policy, found := ofKind(objects, "NetworkPolicy")["egress-clouds"]
	if !found || len(policy.Spec.Egress) != 1 || len(policy.Spec.Egress[0].To) != 1 {
		t.Fatalf("got %+v", policy)
	}
	for name, service := range ofKind(objects, "Service") {
		if want := name == "connections" || name == "run-connections"; selects(policy, service.Spec.Template.Metadata.Labels) != want {
			t.Errorf("%s may reach other clouds: %t", name, !want)
		}
	}
}
