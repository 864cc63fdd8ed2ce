package servers

import (
	"context"
	"slices"
	"strings"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// networkCloud is the part of OpenStack that the interfaces and security groups of servers need.
type networkCloud interface {
	Interfaces(ctx context.Context, serverID string) ([]domain.Interface, error)
	SetInterfaceGroups(ctx context.Context, i domain.Interface, groups []string) error
	AttachPort(ctx context.Context, serverID string, r domain.InterfaceRequest) (portID string, err error)
	DetachPort(ctx context.Context, serverID, portID string) error
	Port(ctx context.Context, id string) (domain.Port, error)
	Networks(context.Context) ([]domain.Network, error)
	NetworkNames(context.Context) ([]domain.Network, error)
	SecurityGroups(context.Context) ([]domain.SecurityGroup, error)
}

// interfaces reads a server of the caller's project and its interfaces.
func (s service) interfaces(
	ctx context.Context, a access, id string,
) (server domain.Server, all []domain.Interface, err error) {
	if server, err = s.ownServer(ctx, a, id); err != nil {
		return server, nil, err
	}
	all, err = a.cloud.Interfaces(ctx, server.ID)
	return server, all, err
}

// groupNames are the names of the project's security groups by their ids. What cannot be read has none.
func groupNames(ctx context.Context, cloud networkCloud) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, namesTime)
	defer cancel()
	names := map[string]string{}
	groups, err := cloud.SecurityGroups(ctx)
	if err != nil {
		return names
	}
	for _, g := range groups {
		names[g.ID] = g.Name
	}
	return names
}

// SecurityGroups lists the security groups of a server's ports, by name.
func (s service) SecurityGroups(ctx context.Context, a access, id string) ([]ServerSecurityGroup, error) {
	_, ports, err := s.interfaces(ctx, a, id)
	if err != nil {
		return nil, err
	}
	return groupsOf(ports, groupNames(ctx, a.cloud)), nil
}

// groupsOf are the security groups of ports.
func groupsOf(ports []domain.Interface, names map[string]string) []ServerSecurityGroup {
	all := []ServerSecurityGroup{}
	for _, port := range ports {
		for _, id := range port.Groups {
			n := slices.IndexFunc(all, func(g ServerSecurityGroup) bool { return g.ID == id })
			if n < 0 {
				n = len(all)
				all = append(all, ServerSecurityGroup{ID: id, Name: names[id]})
			}
			all[n].PortIDs = append(all[n].PortIDs, port.ID)
		}
	}
	slices.SortFunc(all, func(a, b ServerSecurityGroup) int { return strings.Compare(a.Name+a.ID, b.Name+b.ID) })
	return all
}

// portsFor are the ports of a server that a security group is for: all that take any, or the one of an id.
func portsFor(server domain.Server, all []domain.Interface, portID string) ([]domain.Interface, error) {
	if portID != "" {
		n := slices.IndexFunc(all, func(i domain.Interface) bool { return i.ID == portID })
		if n < 0 {
			return nil, apperr.New(apperr.NotFound, "the server %s does not have the port %s", server.ID, portID)
		}
		all = all[n : n+1]
	}
	all = slices.DeleteFunc(slices.Clone(all), func(i domain.Interface) bool { return !i.IsSecured })
	if len(all) == 0 {
		return nil, apperr.New(apperr.Conflict, "the server %s has no such port with port security, which security "+
			"groups need", server.ID)
	}
	return all, nil
}

// AddSecurityGroup gives ports of a server a security group, which is given by its id or name: all of its ports, or
// one. isNew is false when they have it already.
func (s service) AddSecurityGroup(
	ctx context.Context, a access, id, name, portID string,
) (out ServerSecurityGroup, isNew bool, err error) {
	server, all, err := s.interfaces(ctx, a, id)
	if err != nil {
		return out, false, err
	}
	groups, err := a.cloud.SecurityGroups(ctx)
	if err != nil {
		return out, false, err
	}
	group, err := lookup.PickSecurityGroup(groups, lookup.Ref{Field: "security_group", Value: name})
	if err != nil {
		return out, false, err
	}
	ports, err := portsFor(server, all, portID)
	if err != nil {
		return out, false, err
	}
	ports = slices.DeleteFunc(ports, func(i domain.Interface) bool { return slices.Contains(i.Groups, group.ID) })
	add := func(groups []string) []string {
		if slices.Contains(groups, group.ID) {
			return groups
		}
		return append(slices.Clone(groups), group.ID)
	}
	if err := regroup(ctx, a.cloud, server.ID, ports, add); err != nil {
		return out, false, err
	}
	for n := range all {
		if slices.ContainsFunc(ports, func(i domain.Interface) bool { return i.ID == all[n].ID }) {
			all[n].Groups = add(all[n].Groups)
		}
	}
	has := groupsOf(all, map[string]string{group.ID: group.Name})
	return has[slices.IndexFunc(has, func(g ServerSecurityGroup) bool { return g.ID == group.ID })], len(ports) > 0, nil
}

// RemoveSecurityGroup takes a security group from the ports of a server that have it, or from one of them.
func (s service) RemoveSecurityGroup(ctx context.Context, a access, id, groupID, portID string) error {
	server, all, err := s.interfaces(ctx, a, id)
	if err != nil {
		return err
	}
	ports := slices.DeleteFunc(all, func(i domain.Interface) bool {
		return !slices.Contains(i.Groups, groupID) || portID != "" && i.ID != portID
	})
	if len(ports) == 0 {
		return apperr.New(apperr.NotFound, "the server %s has no such port with the security group %s", id, groupID)
	}
	return regroup(ctx, a.cloud, server.ID, ports, func(groups []string) []string {
		return slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return g == groupID })
	})
}

// regroup changes the security groups of ports. The error of a port says which ones are changed.
func regroup(
	ctx context.Context, cloud networkCloud, serverID string, ports []domain.Interface, change func([]string) []string,
) error {
	steps := make([]step, len(ports))
	for n, port := range ports {
		steps[n] = step{"port " + port.ID, func(ctx context.Context) error {
			return regroupPort(ctx, cloud, serverID, port, change)
		}}
	}
	return runSteps(ctx, steps)
}

// regroupTries is how often a port is changed that others change at the same time.
const regroupTries = 5

// regroupPort changes the security groups of a port. Neutron replaces them all, so a port that was changed meanwhile is
// read again: no group that another request has added is lost.
func regroupPort(
	ctx context.Context, cloud networkCloud, serverID string, port domain.Interface, change func([]string) []string,
) error {
	for range regroupTries {
		groups := change(port.Groups)
		if slices.Equal(groups, port.Groups) {
			return nil
		}
		err := cloud.SetInterfaceGroups(ctx, port, groups)
		if apperr.CodeOf(err) != apperr.Precondition {
			return err
		}
		all, err := cloud.Interfaces(ctx, serverID)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(all, func(i domain.Interface) bool { return i.ID == port.ID })
		if n < 0 {
			return apperr.New(apperr.NotFound, "the server does not have it any more")
		}
		port = all[n]
	}
	return apperr.New(apperr.Conflict, "others change it at the same time: %d attempts have failed", regroupTries)
}

// pickGroups finds the ids of security groups that are given by ids or names.
func pickGroups(ctx context.Context, cloud networkCloud, field string, given []string) ([]string, error) {
	groups, err := cloud.SecurityGroups(ctx)
	if err != nil {
		return nil, err
	}
	ids, wrong := lookup.PickSecurityGroups(groups, field, given)
	if len(wrong) > 0 {
		return nil, wrong[0]
	}
	return ids, nil
}
