// Package knative holds the manifests; this is their test, which needs no cluster.
package knative

import (
	"bytes"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cloudfn/cloudfn/shared/run"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// object is any Kubernetes object, as far as the tests look into it.
type object struct {
	APIVersion string
	Kind       string
	Metadata   struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		Replicas int
		Template struct {
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     struct {
				ServiceAccountName           string
				AutomountServiceAccountToken *bool
				EnableServiceLinks           *bool
				ContainerConcurrency         int
				TimeoutSeconds               int
				Containers                   []struct {
					EnvFrom []struct{ SecretRef, ConfigMapRef struct{ Name string } }
					Env     []struct {
						Name, Value string
						ValueFrom   struct{ SecretKeyRef struct{ Name, Key string } }
					}
					LivenessProbe, ReadinessProbe map[string]any
					VolumeMounts                  []struct {
						Name, MountPath string
						ReadOnly        bool
					}
				}
				Volumes []struct {
					Name   string
					Secret struct{ SecretName string }
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
	cmd := exec.Command(testkit.Program(t, "kustomize"), "build", overlay)
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

// reaches is where what is no function may connect to, besides DNS and the telemetry collector; by the policies' names.
// Where a function may is in its declaration.
var reaches = map[string][]string{
	"gateway": {"egress-functions"}, "migrate": {"egress-postgres"}, "pgbouncer": {"egress-postgres"},
}

// reserved are the secrets that only these may hold: a stolen one opens too much. Who holds another one, its
// declaration says.
var reserved = map[string][]string{
	"openstack":          {"collect-stats", "poll-instances"},
	"openstack-delegate": {"reconcile-managed", "run-connections"},
	"openstack-leases":   {"run-leases"},
	"openstack-nodes":    {"watch-nodes"},
	"connections":        {"run-connections"},
	"managed":            {"reconcile-managed"},
	"seal":               {"deliver-events"},
}

// declared are the functions by name.
func declared(t *testing.T) map[string]run.Declaration {
	t.Helper()
	found := map[string]run.Declaration{}
	for _, f := range testkit.Describe(t).Functions {
		found[f.Name] = f
	}
	return found
}

// TestReach: who may reach receivers of callbacks and Placement, and that those without a cloud reach none.
func TestReach(t *testing.T) {
	t.Parallel()
	functions := declared(t)
	leaves := func(policy string) (names []string) {
		for name, f := range functions {
			if slices.Contains(f.Egress(), policy) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	for policy, want := range map[string][]string{
		"callbacks": {"deliver-events", "watch-nodes"}, "placement": {"launch", "nodes", "run-leases"}, "postgres": nil,
	} {
		if got := leaves(policy); !slices.Equal(got, want) {
			t.Errorf("%v may reach %s, want %v", got, policy, want)
		}
	}
	for name, want := range map[string][]string{
		"agents": {"pgbouncer"}, "stats": {"identity", "pgbouncer"}, "deliver-events": {"callbacks", "pgbouncer"},
		"console": {"functions", "identity", "pgbouncer"},
	} {
		if got := functions[name].Egress(); !slices.Equal(got, want) {
			t.Errorf("%s may reach %v, want %v", name, got, want)
		}
	}
}

// TestNetworkPolicies: everything is denied, and each pod is selected by the egress policies that it needs and by no
// other. Each says where to. The policies that select every pod (DNS, telemetry) are not in the table.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	functions := declared(t)
	for _, overlay := range []string{"local", "production"} {
		objects := render(t, overlay)
		policies := ofKind(objects, "NetworkPolicy")
		if deny := policies["deny-all"]; len(deny.Spec.PodSelector.MatchLabels) != 0 ||
			!slices.Equal(deny.Spec.PolicyTypes, []string{"Ingress", "Egress"}) || deny.Spec.Egress != nil ||
			deny.Spec.Ingress != nil {
			t.Errorf("%s: deny-all is %+v", overlay, deny.Spec)
		}
		pods := knativeServices(objects)
		maps.Copy(pods, ofKind(objects, "Job"))
		maps.Copy(pods, ofKind(objects, "Deployment"))
		for name, pod := range pods {
			want := slices.Clone(reaches[name])
			if f, found := functions[name]; found {
				for _, policy := range f.Egress() {
					want = append(want, "egress-"+policy)
				}
			}
			var got []string
			for policy, p := range policies {
				if !slices.Contains(p.Spec.PolicyTypes, "Egress") || len(p.Spec.PodSelector.MatchLabels) == 0 ||
					!selects(p, pod.Spec.Template.Metadata.Labels) {
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
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: %s may reach %v, want %v", overlay, name, got, want)
			}
		}
		ingress := policies["ingress-from-knative"].Spec.Ingress
		if len(ingress) != 1 || len(ingress[0].Ports) == 0 ||
			slices.ContainsFunc(ingress[0].Ports, func(p struct{ Port int }) bool { return p.Port == 8080 }) {
			t.Errorf("%s: it must be queue-proxy that is reached, not the functions' own port: %+v", overlay, ingress)
		}
	}
}

// knativeServices are the functions and the gateway: Kubernetes has Services, too.
func knativeServices(objects []object) map[string]object {
	found := map[string]object{}
	for _, o := range objects {
		if o.Kind == "Service" && strings.HasPrefix(o.APIVersion, "serving.knative.dev/") {
			found[o.Metadata.Name] = o
		}
	}
	return found
}

func selects(policy object, labels map[string]string) bool {
	for k, v := range policy.Spec.PodSelector.MatchLabels {
		if labels[k] != v {
			return false
		}
	}
	return true
}
