package managed

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// podFile is the pod of a server in Kubernetes' form, which Podman plays (podman-kube-play(1)). It contains the
// environment of its containers.
const podFile = "/etc/cloudfn/pod.yaml"

// podConfig is cloud-init's part of a pod: Podman's own unit starts it at each boot.
var podConfig = map[string]any{
	"package_update": true,
	"packages":       []string{"podman"},
	"runcmd": [][]string{
		{"systemctl", "daemon-reload"}, {"systemctl", "enable", "--now", "--no-block", podUnit},
	},
}

const (
	// podUnit is podman-kube@, which Podman has since 4.2, with podFile as its instance (systemd-escape(1)).
	podUnit = "podman-kube@-etc-cloudfn-pod.yaml.service"

	// podDropIn lets the unit pull images for longer than systemd's 90 s, and again after a failure. What Podman says
	// of that is in the server's console log. After a crash of the server, Podman's other unit would start the former
	// containers while this one replaces them, which then fails.
	podDropIn     = "/etc/systemd/system/" + podUnit + ".d/cloudfn.conf"
	podDropInText = `[Unit]
Before=podman-restart.service
[Service]
TimeoutStartSec=infinity
Restart=on-failure
RestartSec=15
StandardOutput=journal+console
StandardError=journal+console
`

	// podDropInEnds is for pods whose containers may end. When all have ended, Podman kills the container that stands
	// for them in the unit. That is no failure of the pod: the unit must not start it again.
	podDropInEnds = "RestartPreventExitStatus=137 143\n"
)

// restartPolicies are Kubernetes', by the words of the API.
var restartPolicies = map[string]string{"": "Always", "always": "Always", "on_failure": "OnFailure", "never": "Never"}

// The parts of a Kubernetes pod that are declared (kubernetes.io, Pod v1 core).
type (
	kubePod struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   map[string]string `json:"metadata"`
		Spec       kubePodSpec       `json:"spec"`
	}
	kubePodSpec struct {
		HostNetwork   bool            `json:"hostNetwork"`
		RestartPolicy string          `json:"restartPolicy"`
		Volumes       []kubeVolume    `json:"volumes,omitempty"`
		Containers    []kubeContainer `json:"containers"`
	}
	kubeVolume struct {
		Name     string            `json:"name"`
		HostPath map[string]string `json:"hostPath"`
	}
	kubeMount struct {
		Name      string `json:"name"`
		MountPath string `json:"mountPath"`
		ReadOnly  bool   `json:"readOnly,omitempty"`
	}
	kubeContainer struct {
		Name      string         `json:"name"`
		Image     string         `json:"image"`
		Command   []string       `json:"command,omitempty"`
		Args      []string       `json:"args,omitempty"`
		Env       []kubeVariable `json:"env,omitempty"`
		Mounts    []kubeMount    `json:"volumeMounts,omitempty"`
		Resources map[string]any `json:"resources,omitempty"`
	}
	kubeVariable struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

// normalized is the pod as far as another one takes another server: the same in other words is the same. Ports are
// those of the server, and only shown.
func normalized(p domain.PodTemplate) domain.PodTemplate {
	p.Restart, p.Containers = cmp.Or(p.Restart, "always"), slices.Clone(p.Containers)
	for n := range p.Containers {
		p.Containers[n].Ports = nil
	}
	return p
}

// PodFiles are the files of a server that runs the pod. They are no part of the UserDataDigest, which has what is
// declared: another form of them replaces no server.
func PodFiles(p domain.PodTemplate) map[string]string {
	if len(p.Containers) == 0 {
		return map[string]string{}
	}
	pod := kubePod{
		APIVersion: "v1", Kind: "Pod", Metadata: map[string]string{"name": "pod"},
		Spec: kubePodSpec{HostNetwork: true, RestartPolicy: restartPolicies[p.Restart]},
	}
	for _, c := range p.Containers {
		out := kubeContainer{Name: c.Name, Image: agent.FullImage(c.Image), Command: c.Command, Args: c.Args}
		for _, name := range slices.Sorted(maps.Keys(c.Env)) {
			out.Env = append(out.Env, kubeVariable{name, c.Env[name]})
		}
		for _, m := range c.Mounts {
			name := "mount-" + strconv.Itoa(len(pod.Spec.Volumes))
			pod.Spec.Volumes = append(pod.Spec.Volumes, kubeVolume{name, map[string]string{"path": m.Source}})
			out.Mounts = append(out.Mounts, kubeMount{name, m.Target, m.ReadOnly})
		}
		limits := map[string]string{}
		if c.Resources.CPUs > 0 {
			limits["cpu"] = strconv.FormatFloat(c.Resources.CPUs, 'f', -1, 64)
		}
		if c.Resources.MemoryMB > 0 {
			limits["memory"] = strconv.Itoa(c.Resources.MemoryMB) + "Mi"
		}
		if len(limits) > 0 {
			out.Resources = map[string]any{"limits": limits}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, out)
	}
	text, err := json.Marshal(pod) // YAML, too
	if err != nil {
		return map[string]string{}
	}
	dropIn := podDropInText
	if pod.Spec.RestartPolicy != restartPolicies[""] {
		dropIn += podDropInEnds
	}
	return map[string]string{podFile: string(text) + "\n", podDropIn: dropIn}
}
