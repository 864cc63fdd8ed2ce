package knative

import (
	"encoding/base64"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSecrets: each function holds the secrets that it needs, and those that serve HTTP hold nothing that opens what is
// sealed, or that logs in to the cloud, wherever in their environment.
func TestSecrets(t *testing.T) {
	t.Parallel()
	functions := declared(t)
	for _, overlay := range []string{"local", "production"} {
		objects := render(t, overlay)
		secrets, configs := ofKind(objects, "Secret"), ofKind(objects, "ConfigMap")
		for name, service := range knativeServices(objects) {
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
				from := v.ValueFrom.SecretKeyRef
				if v.Name != "DATABASE_URL" {
					continue
				}
				url, err := base64.StdEncoding.DecodeString(secrets[from.Name].Data[from.Key])
				if want := "//" + functions[name].Role() + ":"; err != nil || !strings.Contains(string(url), want) {
					t.Errorf("%s: %s goes to Postgres by %s, want the user in %s", overlay, name, url, want)
				}
			}
			var want []string
			for _, secret := range functions[name].Secrets {
				want = append(want, "cloudfn-"+secret)
			}
			slices.Sort(want)
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s: %s holds %v, want %v", overlay, name, got, want)
			}
			if !slices.Contains(variables, "OS_AUTH_URL") ||
				slices.Contains(variables, "DATABASE_URL") == (name == "gateway") {
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
	objects := renderWith(t, map[string]string{
		"kustomization.yaml": "resources: [KNATIVE/overlays/production]\ncomponents: [KNATIVE/components/clouds]\n",
	})
	policy, found := ofKind(objects, "NetworkPolicy")["egress-clouds"]
	if !found || len(policy.Spec.Egress) != 1 || len(policy.Spec.Egress[0].To) != 1 {
		t.Fatalf("got %+v", policy)
	}
	for name, service := range knativeServices(objects) {
		if want := name == "connections" || name == "run-connections"; selects(policy,
			service.Spec.Template.Metadata.Labels) != want {
			t.Errorf("%s may reach other clouds: %t", name, !want)
		}
	}
}

// TestMountedCloudsYAML: an overlay of one's own mounts a clouds.yaml in run-leases, in place of the variables of its
// account: the hash of the Secret's name is followed, so that another password makes a new revision. No other function
// has it.
func TestMountedCloudsYAML(t *testing.T) {
	t.Parallel()
	objects := renderWith(t, map[string]string{
		"clouds.yaml": "clouds: {hosts: {auth: {username: hosts, password: x}}}\n",
		"kustomization.yaml": `resources: [KNATIVE/overlays/production]
secretGenerator:
  - {name: cloudfn-openstack-leases, namespace: cloudfn, behavior: replace, literals: [LEASES_OS_CLOUD=hosts]}
  - {name: cloudfn-clouds-leases, namespace: cloudfn, files: [clouds.yaml]}
patches:
  - target: {group: serving.knative.dev, kind: Service, name: run-leases}
    patch: |
      - op: add
        path: /spec/template/spec/volumes
        value: [{name: clouds, secret: {secretName: cloudfn-clouds-leases}}]
      - op: add
        path: /spec/template/spec/containers/0/volumeMounts
        value: [{name: clouds, mountPath: /etc/openstack, readOnly: true}]
`,
	})
	secrets := ofKind(objects, "Secret")
	for name, service := range knativeServices(objects) {
		pod := service.Spec.Template.Spec
		if name != "run-leases" {
			if len(pod.Volumes) != 0 {
				t.Errorf("%s has the volumes %v", name, pod.Volumes)
			}
			continue
		}
		if len(pod.Volumes) != 1 || len(pod.Containers[0].VolumeMounts) != 1 ||
			!pod.Containers[0].VolumeMounts[0].ReadOnly {
			t.Fatalf("run-leases has %v at %v", pod.Volumes, pod.Containers[0].VolumeMounts)
		}
		if file := secrets[pod.Volumes[0].Secret.SecretName].Data["clouds.yaml"]; file == "" {
			t.Errorf("no Secret is %s", pod.Volumes[0].Secret.SecretName)
		}
		for _, from := range pod.Containers[0].EnvFrom {
			account := secrets[from.SecretRef.Name].Data
			if strings.HasPrefix(from.SecretRef.Name, "cloudfn-openstack-leases-") &&
				(len(account) != 1 || account["LEASES_OS_CLOUD"] == "") {
				t.Errorf("the account's variables are %v", slices.Collect(maps.Keys(account)))
			}
		}
	}
}

// renderWith builds an overlay of one's own of these files. KNATIVE in them is this folder.
func renderWith(t *testing.T, files map[string]string) []object {
	t.Helper()
	dir := t.TempDir()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	knative, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		text = strings.ReplaceAll(text, "KNATIVE", knative)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return render(t, dir)
}

// TestWhoHoldsSecrets: what opens something is reserved, and the key of events is for those who are woken or wake.
func TestWhoHoldsSecrets(t *testing.T) {
	t.Parallel()
	functions := declared(t)
	for name, f := range functions {
		for _, woken := range f.Reach.Wakes {
			if functions[woken].Kind != "event" {
				t.Errorf("%s wakes %s, which is no event function", name, woken)
			}
		}
		if holds := slices.Contains(f.Secrets, "events"); holds != (f.Kind == "event" || len(f.Reach.Wakes) > 0) {
			t.Errorf("%s holds the key of events: %t", name, holds)
		}
		for secret, holders := range reserved {
			if slices.Contains(f.Secrets, secret) != slices.Contains(holders, name) {
				t.Errorf("%s: %s is for %v", name, secret, holders)
			}
		}
	}
}
