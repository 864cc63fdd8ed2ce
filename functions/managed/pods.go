package managed

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/agent"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	engine "github.com/cloudfn/cloudfn/shared/managed"
)

// PodSpec declares the containers of a server, and the server.
type PodSpec struct {
	domain.PodSpec
	UserData
}

// PodDeploymentSpec declares a number of equal pods.
type PodDeploymentSpec struct {
	domain.PodDeploymentSpec
	UserData
}

// checkPod checks the containers of a pod, and has its server replaced by each change that takes it.
func checkPod(p domain.PodTemplate, server *domain.MachineSpec, fault func(field, detail string)) {
	if server.Update == domain.UpdateInPlace {
		fault("update", "must be replace: a change of a pod replaces it")
	}
	server.Update = domain.UpdateReplace
	names, ports := map[string]int{}, map[string]int{}
	for n, c := range p.Containers {
		field := func(name string) string { return fmt.Sprintf("containers[%d].%s", n, name) }
		if !nameForm.MatchString(c.Name) {
			fault(field("name"), nameRule)
		}
		if first, isTaken := names[c.Name]; isTaken {
			fault(field("name"), fmt.Sprintf("is the one of containers[%d], too", first))
		}
		names[c.Name] = n
		for _, err := range agent.CheckContainer(c.Image, c.Command, c.Env) {
			e := apperr.As(err).Fields[0]
			fault(field(e.Field), e.Detail)
		}
		for _, err := range agent.CheckCommand("args", c.Args) {
			e := apperr.As(err).Fields[0]
			fault(field(e.Field), e.Detail)
		}
		checkMounts(c.Mounts, func(name, detail string) { fault(field(name), detail) })
		for m, port := range c.Ports {
			of := fmt.Sprintf("%v/%d", port.Protocol == "UDP", port.Port)
			if first, isTaken := ports[of]; isTaken {
				fault(field(fmt.Sprintf("ports[%d].port", m)), fmt.Sprintf("is one of containers[%d], too: the "+
					"containers share the server's network", first))
			}
			ports[of] = n
		}
	}
	if _, err := engine.WithFiles("", engine.PodFiles(p)); err != nil {
		fault("containers", fmt.Sprintf("do not fit in a server's user_data, which has at most %d bytes and holds "+
			"them in base64", domain.MaxUserData))
	}
}

// checkMounts checks paths as Podman takes them.
func checkMounts(mounts []domain.ContainerMount, fault func(field, detail string)) {
	targets := map[string]int{}
	for n, m := range mounts {
		at := fmt.Sprintf("mounts[%d].", n)
		for name, file := range map[string]string{"source": m.Source, "target": m.Target} {
			if path.Clean(file) != file || strings.Contains(file, ":") {
				fault(at+name, "must be a path such as /var/lib/app: without .., a colon or a slash at its end")
			}
		}
		if first, isTaken := targets[m.Target]; isTaken || m.Target == "/" {
			fault(at+"target", fmt.Sprintf("must be a path of its own, and not / or that of mounts[%d]", first))
		}
		targets[m.Target] = n
	}
}

// checkPodUserData rejects user_data that a pod's files cannot be added to.
func (c *checkedSpec) checkPodUserData(spec json.RawMessage) error {
	var p domain.PodTemplate
	_ = json.Unmarshal(spec, &p) // it was checked; other kinds have no containers
	if len(p.Containers) == 0 || c.secret == "" {
		return nil
	}
	_, err := engine.WithFiles(domain.Secret(c.secret), engine.PodFiles(p))
	return err
}

// endpoints are where the containers of a pod, or of each pod of a deployment, are reached: the addresses that their
// servers have now.
func (s service) endpoints(ctx context.Context, m domain.Managed) (all []domain.Endpoint, err error) {
	var template domain.PodTemplate
	_ = json.Unmarshal(m.Spec, &template) // it was checked
	if !m.Kind.IsPod() || len(m.Members) == 0 {
		return nil, nil
	}
	ids := make([]uuid.UUID, len(m.Members))
	for n, member := range m.Members {
		ids[n] = member.ID
	}
	found, err := s.instances.Addresses(ctx, m.ProjectID, ids)
	for _, member := range m.Members {
		all = append(all, template.Endpoints(m.NameOf(member), found[member.ID])...)
	}
	return all, err
}
