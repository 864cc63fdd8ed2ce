package managed

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// launchSpec resolves the names in a spec.
func launchSpec(
	ctx context.Context, s Session, in Desired, spec domain.MachineSpec,
) (out domain.LaunchSpec, err error) {
	flavor, err := findFlavor(ctx, s, spec.Flavor)
	if err != nil {
		return out, err
	}
	out.Sized(flavor)
	image, err := findImage(ctx, s, in, spec.Image)
	if err != nil {
		return out, err
	}
	out.ImageID = image.ID
	if boot := spec.BootVolume; boot != nil {
		out.Volumes = []domain.ServerVolume{{
			IsBoot: true, Source: domain.FromImage, SizeGB: boot.SizeGB, Type: boot.Type, DeleteOnTermination: true,
		}}
	}
	if err := out.BootFrom(image, "spec.boot_volume"); err != nil {
		return out, err
	}
	networks, err := s.networks(ctx)
	if err != nil {
		return out, err
	}
	refs := make([]lookup.Ref, len(spec.Networks))
	for n, name := range spec.Networks {
		refs[n] = lookup.Ref{Field: fmt.Sprintf("spec.networks[%d]", n), Value: name}
	}
	if refs, err = lookup.PickNetworks(networks, refs); err != nil {
		return out, err
	}
	for _, r := range refs {
		out.NetworkIDs = append(out.NetworkIDs, r.Value)
	}
	const field = "spec.security_groups"
	out.SecurityGroups, err = lookup.FindSecurityGroups(ctx, s.securityGroups, field, spec.SecurityGroups)
	if err != nil {
		return out, err
	}
	out.KeyName, out.Metadata = spec.KeyName, spec.Metadata
	out.Zone, err = zoneFor(in)
	return out, err
}

func findFlavor(ctx context.Context, s Session, name string) (domain.Flavor, error) {
	flavors, err := s.flavors(ctx)
	if err != nil {
		return domain.Flavor{}, err
	}
	return lookup.PickFlavor(flavors, lookup.Ref{Field: "spec.flavor", Value: name})
}

// zoneFor is the availability zone that a new server is made in; "" = any. Members are spread over the zones that the
// labels of the schedule leave.
func zoneFor(in Desired) (string, error) {
	rule := in.Resource.Schedule
	switch {
	case rule.Zone != "" || len(rule.Labels) == 0:
		return rule.Zone, nil
	case len(in.Zones) == 0:
		return "", Waits("NoNode", "no node has the labels of schedule.labels")
	}
	return in.Zones[in.Member.Ordinal%len(in.Zones)], nil
}

// Differences implements Driver.
func (*MachineDriver) Differences(in Desired, o Object) []Difference {
	server, ok := o.Raw.(domain.Server)
	if !ok {
		return nil
	}
	spec, made := read[domain.MachineSpec](in.Spec), read[domain.MachineSpec](in.Made.Spec)
	way := InPlace
	if spec.Update == domain.UpdateReplace {
		way = Replace
	}
	out := compare("name", in.Name, server.Name, InPlace)
	out = append(out, missing("tags", set([]string{in.Member.ID.String(), markTag}), set(server.Tags))...)
	out = append(out, entries("metadata", spec.Metadata, had(in, func(s domain.MachineSpec) map[string]string {
		return s.Metadata
	}), server.Metadata)...)
	out = append(out, entries("tags", set(spec.Tags), had(in, func(s domain.MachineSpec) map[string]string {
		return set(s.Tags)
	}), set(server.Tags))...)
	isMade := made.Flavor == "" || made.Flavor == spec.Flavor
	switch {
	case server.Status == resized && isChanging(in.Member): // others confirm what they resize
		// It is confirmed even when another flavor is declared by now: Nova takes no other resize before.
		out = append(out, Difference{
			Field: "flavor", Declared: spec.Flavor, Actual: server.Status, Way: InPlace, Disrupts: true,
			Continues: true,
		})
	case isFlavorOf(spec, server):
	case isMade && !in.names.hasFlavor(spec.Flavor): // it was deleted, and the server keeps it
	default:
		out = append(out, Difference{
			Field: "flavor", Declared: spec.Flavor, Actual: server.Flavor.Name, Way: way, Disrupts: true,
		})
	}
	actual, isOther := otherImage(spec, made, server)
	isOther = isOther || in.Member.IsRebuilt && server.Image != nil && in.Made.Number != in.Resource.Revision
	if isOther && !in.names.isImageOf(server) {
		out = append(out, Difference{Field: "image", Declared: spec.Image, Actual: actual, Way: way, Disrupts: true})
	}
	out = append(out, volumeDifferences(in, spec, server)...)
	out = append(out, portDifferences(spec, made, server)...)
	if in.Made.Number != in.Resource.Revision && in.Made.Number != 0 { // 0: what it was made of is not known
		out = append(out, fixedDifferences(in, spec, made, server)...)
	}
	isSaid := slices.ContainsFunc(out, func(d Difference) bool {
		return slices.Contains([]string{"configmaps", "user_data", "containers", "restart"}, d.Field)
	})
	if one, isOther := fileDifference(in, spec); isOther && !isSaid {
		out = append(out, one)
	}
	return out
}

// isChanging reports whether a step for a member has begun, and is not known to have ended. Its last call may have
// failed.
func isChanging(m domain.Member) bool {
	hasFailed := m.Status == domain.MemberError && m.Written != fault
	return m.Status == domain.MemberUpdating || m.Status == domain.MemberCreating || hasFailed
}

// otherImage reports whether a server was made of another image than declared. An image that is declared by its name is
// the one that had the name when the server was made.
func otherImage(spec, made domain.MachineSpec, server domain.Server) (actual string, isOther bool) {
	if server.Image == nil {
		return "", false
	}
	if uuid.Validate(spec.Image) == nil {
		return server.Image.ID, !strings.EqualFold(server.Image.ID, spec.Image)
	}
	return server.Image.ID, made.Image != "" && made.Image != spec.Image
}

// volumeDifferences compares the volumes that a server should have with those that it has. Volumes that others have
// attached stay.
func volumeDifferences(in Desired, spec domain.MachineSpec, server domain.Server) []Difference {
	var out []Difference
	for _, name := range spec.Volumes {
		o := in.Inventory.volume(name)
		isAttached := slices.Contains(server.VolumeIDs, o.ID) && !isAttaching(o, server)
		if !isAttached { // a volume that others have deleted is not there either
			out = append(out, Difference{Field: "volumes." + name, Declared: cmp.Or(o.ID, name), Way: InPlace})
		}
	}
	before := had(in, func(s domain.MachineSpec) map[string]string { return set(s.Volumes) })
	for _, name := range slices.Sorted(maps.Keys(before)) {
		o := in.Inventory.volume(name)
		if slices.Contains(server.VolumeIDs, o.ID) && !slices.Contains(spec.Volumes, name) {
			out = append(out, Difference{Field: "volumes." + name, Actual: o.ID, Way: InPlace})
		}
	}
	return out
}

// fixedDifferences are those of fields that only a new server can have.
func fixedDifferences(in Desired, spec, made domain.MachineSpec, server domain.Server) []Difference {
	var out []Difference
	add := func(field string, isSame bool, declared, actual any) {
		if isSame {
			return
		}
		one := Difference{
			Field: field, Declared: declared, Actual: actual, Way: Refused,
			Why: "only a new server can have it: declare update: replace, or what it was",
		}
		if spec.Update == domain.UpdateReplace {
			one.Way, one.Why = Replace, ""
		}
		out = append(out, one)
	}
	isOnSame := slices.Equal(spec.Networks, made.Networks) ||
		slices.Equal(in.names.networkIDs(spec.Networks), in.names.networkIDs(made.Networks))
	add("networks", isOnSame, spec.Networks, made.Networks)
	add("boot_volume", domain.Deref(spec.BootVolume) == domain.Deref(made.BootVolume), spec.BootVolume, made.BootVolume)
	// Nova shows no image of a server that boots from a volume: whether it was rebuilt could not be seen.
	add("image", made.BootVolume == nil || in.names.isMadeOf(spec, made, server), spec.Image, made.Image)
	add("key_name", spec.KeyName == made.KeyName, spec.KeyName, made.KeyName)
	add("security_groups", slices.Equal(in.names.groupIDs(spec.SecurityGroups), in.names.groupIDs(made.SecurityGroups)),
		spec.SecurityGroups, made.SecurityGroups)
	hasFiles := hasUserData(in) || slices.Equal(nameSet(spec.Configmaps), nameSet(made.Configmaps))
	add("configmaps", hasFiles, spec.Configmaps, made.Configmaps)
	pod, before := normalized(read[domain.PodTemplate](in.Spec)), normalized(read[domain.PodTemplate](in.Made.Spec))
	add("containers", reflect.DeepEqual(pod.Containers, before.Containers), pod.Containers, before.Containers)
	add("restart", pod.Restart == before.Restart, pod.Restart, before.Restart)
	add("user_data", hasUserData(in) || slices.Equal(in.Resource.Digest, in.Made.Digest), nil, nil)
	now, earlier := in.Resource.Schedule, in.Made.Schedule
	isInZone := now.Zone == earlier.Zone || now.Zone == "" || now.Zone == server.Zone
	add("schedule", isInZone && now.Affinity == earlier.Affinity && maps.Equal(now.Labels, earlier.Labels),
		now, earlier)
	return out
}

// Update implements Driver. What does not interrupt the server comes first; a resize and a rebuild take a while each.
func (d *MachineDriver) Update(ctx context.Context, s Session, in Desired, o Object, differences []Difference) error {
	server, ok := o.Raw.(domain.Server)
	if !ok {
		return Waits("NotObserved", "no list shows the server %s", o.ID)
	}
	if err := describe(ctx, s, in, server, differences); err != nil {
		return unsent(err)
	}
	spec := read[domain.MachineSpec](in.Spec)
	if one, ok := find(differences, "flavor"); ok {
		if one.Actual == resized {
			return s.Cloud.ConfirmMigration(ctx, server.ID)
		}
		flavor, err := findFlavor(ctx, s, spec.Flavor)
		if err != nil {
			return err
		}
		return s.Cloud.ResizeServer(ctx, server.ID, flavor.ID)
	}
	if !rebuilds(differences) {
		return nil
	}
	image, err := volumeImage(ctx, s, in, spec.Image)
	if err != nil {
		return unsent(err)
	}
	if server.Image != nil && server.Image.ID == image {
		if len(differences) == 1 {
			return ErrNothingLeft
		}
		return nil
	}
	userData, err := withFiles(in)
	if err != nil {
		return unsent(err)
	}
	return s.Cloud.RebuildImage(ctx, server.ID, image, userData)
}

// rebuilds reports whether the next step of an update is a rebuild of the server.
func rebuilds(differences []Difference) bool {
	return differs(differences, "image") && !differs(differences, "flavor")
}

// describe changes what does not interrupt a server: its marks, name, metadata, volumes and ports.
func describe(ctx context.Context, s Session, in Desired, server domain.Server, differences []Difference) error {
	if err := retag(ctx, s, server, differences); err != nil {
		return err
	}
	if _, ok := find(differences, "name"); ok {
		if err := s.Cloud.RenameServer(ctx, server.ID, in.Name); err != nil {
			return because(err, "it was not renamed")
		}
	}
	if set, remove := changes("metadata", differences); len(set)+len(remove) > 0 {
		if err := s.Cloud.SetServerMetadata(ctx, server.ID, set, remove); err != nil {
			return because(err, "its metadata were not changed")
		}
	}
	attach, detach := changes("volumes", differences)
	for _, name := range detach { // first: servers may swap volumes
		one, _ := find(differences, "volumes."+name)
		if id, ok := one.Actual.(string); ok {
			if err := s.Cloud.DetachVolume(ctx, server.ID, id); err != nil {
				return because(err, "volume %s was not detached", name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(attach)) {
		v, err := freeVolume(in, name)
		if err == nil {
			err = s.Cloud.AttachVolume(ctx, server.ID, v)
		}
		if err != nil {
			return because(err, "volume %s was not attached", name)
		}
	}
	return reconnect(ctx, s, server, differences)
}

// retag removes and adds tags of a server, its marks among them.
func retag(ctx context.Context, s Session, server domain.Server, differences []Difference) error {
	declared, remove := changes("tags", differences)
	add := slices.Sorted(maps.Values(declared))
	for _, tag := range remove { // first: Nova allows 50 tags of a server
		if err := s.Cloud.UntagServer(ctx, server.ID, tag); err != nil {
			return because(err, "the tag %s was not removed", tag)
		}
	}
	for _, tag := range add {
		if err := s.Cloud.TagServer(ctx, server.ID, tag); err != nil {
			return because(err, "the tag %s was not added", tag)
		}
	}
	return nil
}

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
