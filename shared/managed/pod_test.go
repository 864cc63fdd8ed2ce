package managed

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/testkit"
)

// TestPodFiles: a pod is what Podman plays, by Kubernetes' names of its fields, in user_data that cloud-init accepts.
func TestPodFiles(t *testing.T) {
	t.Parallel()
	pod := domain.PodTemplate{Restart: "on_failure", Containers: []domain.Container{
		{
			Name: "web", Image: "registry.example.com/team/web:1.2", Command: []string{"serve"}, Args: []string{"--x", "$(id)"},
			Env: map[string]string{"B": "yes", "A": "a: \"b\" # c"}, Ports: []domain.ContainerPort{{Port: 80}, {Port: 53, Protocol: "UDP"}},
			Resources: domain.ContainerResources{CPUs: 0.5, MemoryMB: 256},
		},
		{
			Name: "helper", Image: "helper:1",
			Mounts: []domain.ContainerMount{{Source: "/etc/cloudfn/a", Target: "/etc/a", ReadOnly: true}},
		},
	}}
	files := PodFiles(pod)
	const want = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"pod"},"spec":{"hostNetwork":true,` +
		`"restartPolicy":"OnFailure","volumes":[{"name":"mount-0","hostPath":{"path":"/etc/cloudfn/a"}}],"containers":[{"name":"web","image":"registry.example.com/team/web:1.2",` +
		`"command":["serve"],"args":["--x","$(id)"],"env":[{"name":"A","value":"a: \"b\" # c"},` +
		`{"name":"B","value":"yes"}],` +
		`"resources":{"limits":{"cpu":"0.5","memory":"256Mi"}}},{"name":"helper","image":"docker.io/library/helper:1",` +
		`"volumeMounts":[{"name":"mount-0","mountPath":"/etc/a","readOnly":true}]}]}}` + "\n"
	if files[podFile] != want {
		t.Errorf("the pod is\n%s\nwant\n%s", files[podFile], want)
	}
	if text := files[podDropIn]; !strings.HasPrefix(text, "[Unit]\nBefore=podman-restart.service\n[Service]\n") {
		t.Errorf("the unit has %s", text)
	}
	// Podman ends its unit with 137 when all containers of a pod have ended.
	for policy, ends := range map[string]bool{"": false, "always": false, "on_failure": true, "never": true} {
		pod.Restart = policy
		if text := PodFiles(pod)[podDropIn]; strings.Contains(text, "\nRestartPreventExitStatus=137 143\n") != ends {
			t.Errorf("restart %q: the unit has %s", policy, text)
		}
	}
	if len(PodFiles(domain.PodTemplate{})) != 0 {
		t.Error("a server without containers has files of a pod")
	}
	userData, err := WithFiles("#!/bin/sh\nlogin\n", files)
	if err != nil || !strings.Contains(userData.Reveal(), "text/cloud-config") {
		t.Errorf("got %v %s", err, userData.Reveal())
	}
	if userData, err = WithFiles("", files); err != nil {
		t.Fatal(err)
	}
	var config struct {
		Files []struct{ Path, Permissions string } `json:"write_files"`
		Run   [][]string                           `json:"runcmd"`
	}
	body, _ := strings.CutPrefix(userData.Reveal(), "#cloud-config\n")
	if err := json.Unmarshal([]byte(body), &config); err != nil || len(config.Files) != 2 || len(config.Run) != 2 {
		t.Fatalf("%v: %s", err, body)
	}
	for _, f := range config.Files {
		if (f.Permissions == "0600") != (f.Path == podFile) {
			t.Errorf("got %+v", f)
		}
	}
	path := filepath.Join(t.TempDir(), "user-data")
	if err := os.WriteFile(path, []byte(userData.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	cloudInit := filepath.Join(testkit.Root(), "scripts", "cloud-init")
	out, err := exec.CommandContext(t.Context(), cloudInit, "schema", "--config-file", path).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("Valid cloud-config")) {
		t.Errorf("%v %s", err, out)
	}
	// systemd's name of the unit is that of the file.
	if escaped := "podman-kube@" + strings.ReplaceAll(podFile, "/", "-") + ".service"; escaped != podUnit {
		t.Errorf("the unit is %s, want %s", podUnit, escaped)
	}
}

// TestDigestOfPods: the digest decides whether servers are replaced, so it stays what it was for the same declaration:
// without containers, and in other words.
func TestDigestOfPods(t *testing.T) {
	t.Parallel()
	digest := func(spec string) string {
		return UserDataDigest(domain.Revision{Spec: json.RawMessage(spec), Digest: []byte("a")}, Inventory{})
	}
	const (
		pod    = `{"containers": [{"name": "web", "image": "web:1"}]}`
		server = "1999270296634d237c9b68815a7d2cc34b09b85a7b20e89d6e87ea59c620a35b"
		ofPod  = "49856fca92b264c3da2cdaad8f284e6049ad81767d3f93c3757ec478282411e1"
	)
	for spec, want := range map[string]string{
		`{"flavor": "a"}`: server, pod: ofPod,
		`{"restart": "always", "containers": [{"name": "web", "image": "web:1", "ports": [{"port": 80}]}]}`: ofPod,
	} {
		if got := digest(spec); got != want {
			t.Errorf("%s: got %s", spec, got)
		}
	}
	if digest(pod) == digest(`{"containers": [{"name": "web", "image": "web:2"}]}`) {
		t.Error("another image has the same digest")
	}
}
