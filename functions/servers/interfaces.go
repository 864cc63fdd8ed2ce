package servers

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// Interfaces lists the interfaces of a server.
func (s service) Interfaces(ctx context.Context, a access, id string) ([]ServerInterface, error) {
	_, all, err := s.interfaces(ctx, a, id)
	if err != nil {
		return nil, err
	}
	return showInterfaces(ctx, a.cloud, all), nil
}

// showInterfaces adds the names of networks and security groups. Those that cannot be read stay empty.
func showInterfaces(ctx context.Context, cloud networkCloud, all []domain.Interface) []ServerInterface {
	networks, groups := map[string]string{}, map[string]string{}
	var reads errgroup.Group
	reads.Go(func() error {
		groups = groupNames(ctx, cloud)
		return nil
	})
	reads.Go(func() error {
		ctx, cancel := context.WithTimeout(ctx, namesTime)
		defer cancel()
		found, err := cloud.NetworkNames(ctx)
		for _, n := range found {
			networks[n.ID] = n.Name
		}
		return err
	})
	_ = reads.Wait() // names
	out := make([]ServerInterface, len(all))
	for n, i := range all {
		out[n] = ServerInterface{
			PortID: i.ID, Network: NamedID{i.NetworkID, networks[i.NetworkID]}, MACAddress: i.MAC, Status: i.Status,
			FixedIPs: i.Addresses, SecurityGroups: make([]NamedID, len(i.Groups)),
		}
		for k, id := range i.Groups {
			out[n].SecurityGroups[k] = NamedID{id, groups[id]}
		}
		if out[n].FixedIPs == nil {
			out[n].FixedIPs = []domain.FixedIP{}
		}
	}
	return out
}

// interfaceRequest is a request for an interface. network and groups are ids or names; nil groups = as Nova gives them.
type interfaceRequest struct {
	domain.InterfaceRequest

	network string
	groups  []string
}

// AttachInterface gives a server an interface. isNew is false when it has it already, which a request that is repeated
// after no answer finds. Nova gives it the project's default security group; others follow in a second call.
func (s service) AttachInterface(
	ctx context.Context, a access, id string, r interfaceRequest,
) (out ServerInterface, isNew bool, err error) {
	server, all, err := s.interfaces(ctx, a, id)
	if err != nil {
		return out, false, err
	}
	if err := r.resolve(ctx, a.cloud); err != nil {
		return out, false, err
	}
	n := slices.IndexFunc(all, r.Matches)
	if isNew = n < 0; isNew {
		if all, n, err = attachNew(ctx, a.cloud, server.ID, r.InterfaceRequest); err != nil {
			return out, false, err
		}
	}
	made := all[n]
	if r.groups != nil && !hasSame(made.Groups, r.groups) {
		err := regroupPort(ctx, a.cloud, server.ID, made, func(groups []string) []string {
			if hasSame(groups, r.groups) {
				return groups
			}
			return r.groups
		})
		if err != nil {
			failed := apperr.As(err)
			return out, false, apperr.Wrap(failed.Code, err, "the interface is attached, with the port %s, but its "+
				"security groups are still others: %s (the same request changes them)", made.ID, failed.Message)
		}
		made.Groups = r.groups
	}
	return showInterfaces(ctx, a.cloud, []domain.Interface{made})[0], isNew, nil
}

// hasSame reports whether the lists have the same texts, in any order.
func hasSame(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// attachNew has Nova attach an interface, and reads the server's interfaces then. made is the index of the new one.
func attachNew(
	ctx context.Context, cloud networkCloud, serverID string, r domain.InterfaceRequest,
) (all []domain.Interface, made int, err error) {
	if r.PortID != "" {
		port, err := cloud.Port(ctx, r.PortID)
		if err != nil {
			return nil, 0, err
		}
		if port.DeviceID != "" && port.DeviceID != serverID {
			return nil, 0, apperr.New(apperr.Conflict, "the port %s is in use by %s: detach it first", r.PortID,
				port.DeviceID)
		}
	}
	portID, err := cloud.AttachPort(ctx, serverID, r)
	if err != nil {
		return nil, 0, err
	}
	all, err = cloud.Interfaces(ctx, serverID)
	made = slices.IndexFunc(all, func(i domain.Interface) bool { return i.ID == portID })
	if err != nil || made < 0 { // it is attached: as far as it is known
		all, made = append(all, domain.Interface{ID: portID, NetworkID: r.NetworkID, Status: "BUILD", IsSecured: true}),
			len(all)
	}
	return all, made, nil
}

// resolve finds the ids of what the request names.
func (r *interfaceRequest) resolve(ctx context.Context, cloud networkCloud) error {
	if r.network != "" {
		list := cloud.NetworkNames
		if r.FixedIP != "" {
			list = cloud.Networks // with their subnets
		}
		networks, err := list(ctx)
		if err != nil {
			return err
		}
		picked, err := lookup.PickNetworks(networks, []lookup.Ref{{Field: "network", Value: r.network}})
		if err != nil {
			return err
		}
		r.NetworkID = picked[0].Value
		n := slices.IndexFunc(networks, func(n domain.Network) bool { return n.ID == r.NetworkID })
		if r.FixedIP != "" && !networks[n].HasAddress(r.FixedIP) { // Nova's response would be a 500
			return apperr.InvalidField("fixed_ip", "is in no subnet of the network", networks[n].Ranges()...)
		}
	}
	if r.groups == nil {
		return nil
	}
	ids, err := pickGroups(ctx, cloud, "security_groups", r.groups)
	if r.groups = ids; r.groups == nil {
		r.groups = []string{}
	}
	return err
}

// DetachInterface has Nova take an interface from a server.
func (s service) DetachInterface(ctx context.Context, a access, id, portID string) error {
	server, all, err := s.interfaces(ctx, a, id)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(i domain.Interface) bool { return i.ID == portID }) {
		return apperr.New(apperr.NotFound, "the server %s does not have the port %s", id, portID)
	}
	return a.cloud.DetachPort(ctx, server.ID, portID)
}
