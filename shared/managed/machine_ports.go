package managed

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// portsTime is that of a read of ports: less than a list's, so that the servers are listed without them.
const portsTime = listTime / 2

// addPorts adds to servers their ports, and what they were made of. Both stay nil where they are not known: Neutron may
// withhold ports, or be unavailable. One server takes no list of all ports of the project.
func (d *MachineDriver) addPorts(ctx context.Context, s Session, servers []domain.Server) error {
	id := ""
	if len(servers) == 1 {
		id = servers[0].ID
	}
	limited, cancel := context.WithTimeout(ctx, portsTime)
	defer cancel()
	ports, err := s.ports(limited, id)
	if err != nil {
		slog.WarnContext(ctx, "the ports of managed servers are not known", "project_id", s.ProjectID, "error", err)
		return nil
	}
	by := map[string][]domain.Port{}
	for _, port := range ports {
		by[port.DeviceID] = append(by[port.DeviceID], port)
	}
	ids := make([]string, len(servers))
	for n := range servers {
		ids[n] = servers[n].ID
		servers[n].Ports = append([]domain.Port{}, by[ids[n]]...)
	}
	made, err := d.Instances.Find(ctx, domain.Filter{ProjectID: s.ProjectID}, ids)
	if err != nil {
		return err
	}
	for n := range servers {
		if i := &made[n]; i.ServerID == ids[n] && len(i.Spec.NetworkIDs) > 0 {
			servers[n].MadeOf = &i.Spec
		}
	}
	return nil
}

// portDifferences compares the networks and the declared security groups of a server with those that it was made with.
// A name is the network, or the group, that had it when the server was made.
func portDifferences(spec, made domain.MachineSpec, server domain.Server) (out []Difference) {
	if server.Ports == nil || server.MadeOf == nil {
		return nil
	}
	networks := server.MadeOf.NetworkIDs
	if slices.Equal(spec.Networks, made.Networks) { // else it is to have others
		var actual []string
		for _, port := range server.Ports {
			actual = append(actual, port.NetworkID)
		}
		out = append(out, members("networks", networks, spec.Networks, actual)...)
		for n := range out {
			out[n].Stays = out[n].Actual != nil // its port has an address, which Nova deletes with it
		}
	}
	groups := server.MadeOf.SecurityGroups
	isKnown := !slices.ContainsFunc(groups, func(id string) bool { return uuid.Validate(id) != nil })
	if len(groups) == 0 || !isKnown || !slices.Equal(spec.SecurityGroups, made.SecurityGroups) {
		return out
	}
	for _, port := range grouped(server, server.Ports) {
		for _, one := range members("security_groups", groups, spec.SecurityGroups, port.Groups) {
			if !differs(out, one.Field) {
				out = append(out, one)
			}
		}
	}
	return out
}

// grouped are the ports that have the security groups of a server: those on its networks that Neutron does not leave
// without any.
func grouped(server domain.Server, ports []domain.Port) []domain.Port {
	return slices.DeleteFunc(slices.Clone(ports), func(port domain.Port) bool {
		return port.IsSecured != nil && !*port.IsSecured || !slices.Contains(server.MadeOf.NetworkIDs, port.NetworkID)
	})
}

// members compares a set of ids with what is. Fields end in the names that are declared for the ids.
func members(field string, ids, names, actual []string) (out []Difference) {
	for n, id := range ids {
		label := id
		if len(names) == len(ids) {
			label = names[n]
		}
		if !slices.Contains(actual, id) && !differs(out, field+"."+label) {
			out = append(out, Difference{Field: field + "." + label, Declared: id, Way: InPlace})
		}
	}
	for _, id := range actual {
		if !slices.Contains(ids, id) && !differs(out, field+"."+id) {
			out = append(out, Difference{Field: field + "." + id, Actual: id, Way: InPlace})
		}
	}
	return out
}

// reconnect gives a server back the networks and security groups that others have taken from it, and takes groups away
// that others have added. It reads the ports again: they may have been changed by a call whose answer was lost.
func reconnect(ctx context.Context, s Session, server domain.Server, differences []Difference) error {
	attach, _ := changes("networks", differences)
	add, remove := changes("security_groups", differences)
	if len(attach)+len(add)+len(remove) == 0 {
		return nil
	}
	ports, err := s.Cloud.ServerPorts(ctx, s.ProjectID, server.ID)
	if err != nil {
		return because(err, "its ports were not read")
	}
	for _, id := range slices.Sorted(maps.Values(attach)) {
		if slices.ContainsFunc(ports, func(port domain.Port) bool { return port.NetworkID == id }) {
			continue
		}
		if err := s.Cloud.AttachInterface(ctx, server.ID, id); err != nil {
			return because(err, "the network %s was not attached", id)
		}
	}
	for _, port := range grouped(server, ports) {
		groups := slices.DeleteFunc(slices.Clone(port.Groups), func(id string) bool {
			return slices.Contains(remove, id)
		})
		for _, id := range slices.Sorted(maps.Values(add)) {
			if !slices.Contains(groups, id) {
				groups = append(groups, id)
			}
		}
		if slices.Equal(groups, port.Groups) {
			continue
		}
		if err := s.Cloud.SetPortGroups(ctx, port.ID, groups); err != nil {
			return because(err, "its security groups were not changed")
		}
	}
	return nil
}
