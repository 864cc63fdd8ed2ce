package domain

import "cmp"

// PodTemplate declares the containers that run together on a server. They share its network, so that a port of a
// container is a port of the server.
type PodTemplate struct {
	Containers []Container `json:"containers" minItems:"1" maxItems:"20"`
	// Restart is always if it is empty.
	Restart string `json:"restart,omitempty" enum:"always,on_failure,never" doc:"When a container ends; always."`
}

// Container declares a container, as Kubernetes does.
type Container struct {
	Name      string             `json:"name" minLength:"1" maxLength:"63" doc:"A DNS label."`
	Image     string             `json:"image" minLength:"1" maxLength:"512" doc:"OCI image, with a tag or a digest."`
	Command   []string           `json:"command,omitempty" maxItems:"100" doc:"Instead of the image's entrypoint."`
	Args      []string           `json:"args,omitempty" maxItems:"100" doc:"Instead of the image's command."`
	Env       map[string]string  `json:"env,omitempty"`
	Ports     []ContainerPort    `json:"ports,omitempty" maxItems:"50" doc:"On which it listens."`
	Mounts    []ContainerMount   `json:"mounts,omitempty" maxItems:"50" doc:"Files of the server that it has."`
	Resources ContainerResources `json:"resources,omitzero" doc:"What it may use, at most."`
}

// ContainerPort is a port on which a container listens.
type ContainerPort struct {
	Port     int    `json:"port" minimum:"1" maximum:"65535"`
	Protocol string `json:"protocol,omitempty" enum:"TCP,UDP" doc:"TCP by default."`
}

// ContainerMount gives a container a file or a folder of its server, such as one of a configmap.
type ContainerMount struct {
	Source   string `json:"source" minLength:"1" maxLength:"255" pattern:"^/" doc:"The path on the server."`
	Target   string `json:"target" minLength:"1" maxLength:"255" pattern:"^/" doc:"The path in the container."`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// ContainerResources limits a container; 0 = no limit.
type ContainerResources struct {
	CPUs     float64 `json:"cpus,omitempty" minimum:"0.01" maximum:"1000" doc:"Such as 0.5."`
	MemoryMB int     `json:"memory_mb,omitempty" minimum:"6" maximum:"100000000" doc:"In MiB."`
}

// PodSpec declares a pod, with its server. Its server is replaced by each change that is not made in place.
type PodSpec struct {
	MachineSpec
	PodTemplate
}

// PodDeploymentSpec declares a number of equal pods.
type PodDeploymentSpec struct {
	DeploymentSpec
	PodTemplate
}

// Endpoint is where a container of a pod is reached.
type Endpoint struct {
	Container string `json:"container" minLength:"1"`
	Server    string `json:"server" minLength:"1" doc:"The name of the pod's server."`
	Address   string `json:"address" minLength:"1"`
	Port      int    `json:"port" minimum:"1" maximum:"65535"`
	Protocol  string `json:"protocol" enum:"TCP,UDP"`
}

// Endpoints are those of the pod on a server with these addresses, by container, port and address.
func (p PodTemplate) Endpoints(server string, addresses []Address) []Endpoint {
	var all []Endpoint
	for _, c := range p.Containers {
		for _, port := range c.Ports {
			for _, a := range addresses {
				all = append(all, Endpoint{c.Name, server, a.IP, port.Port, cmp.Or(port.Protocol, "TCP")})
			}
		}
	}
	return all
}
