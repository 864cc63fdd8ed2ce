package managed

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/actions"
	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/orders"
)

// MachineCloud is the part of OpenStack that servers need.
type MachineCloud interface {
	orders.Cloud
	actions.Cloud
	lookup.Images
	Flavors(context.Context) ([]domain.Flavor, error)
	Networks(context.Context) ([]domain.Network, error)
	SecurityGroups(context.Context) ([]domain.SecurityGroup, error)
	CellsUp(ctx context.Context, projectID string) error
	MarkedServers(ctx context.Context, tag string) ([]domain.Server, error)
	TagServer(ctx context.Context, id, tag string) error
	UntagServer(ctx context.Context, id, tag string) error
	RenameServer(ctx context.Context, id, name string) error
	SetServerMetadata(ctx context.Context, id string, set map[string]string, remove []string) error
	ResizeServer(ctx context.Context, id, flavorID string) error
	ConfirmMigration(ctx context.Context, id string) error
	RebuildImage(ctx context.Context, id, imageID string, userData domain.Secret) error
	AttachVolume(ctx context.Context, serverID string, v domain.ServerVolume) error
	DetachVolume(ctx context.Context, serverID, volumeID string) error
	KeyPairs(context.Context) ([]domain.KeyPair, error)
	Zones(context.Context) ([]domain.Zone, error)
	EnsureServerGroup(ctx context.Context, name, policy string) (string, error)
	DeleteServerGroups(ctx context.Context, name string) error
	ServerPorts(ctx context.Context, projectID, serverID string) ([]domain.Port, error)
	SetPortGroups(ctx context.Context, id string, groups []string) error
	AttachInterface(ctx context.Context, serverID, networkID string) error
}

// Instances are the tracked servers.
type Instances interface {
	Find(ctx context.Context, f domain.Filter, ids []string) ([]domain.Instance, error)
}

// MachineDriver makes servers. Each is ordered as a launch of one instance, whose id is the member's: so it is made
// once, tracked, and has events as others do.
type MachineDriver struct {
	Orders    orders.Engine
	Actions   actions.Engine
	Instances Instances
}

// Kinds implements Driver.
func (*MachineDriver) Kinds() []domain.Kind { return domain.ServerKinds() }

// Needs implements Driver.
func (*MachineDriver) Needs(spec json.RawMessage) []Ref {
	m, all := read[domain.MachineSpec](spec), []Ref{}
	for _, name := range m.Volumes {
		all = append(all, Ref{domain.KindVolume, name})
	}
	for _, name := range m.Configmaps {
		all = append(all, Ref{domain.KindConfigmap, name})
	}
	return all
}

// List implements Driver.
func (d *MachineDriver) List(
	ctx context.Context, s Session, members []domain.Member,
) (map[uuid.UUID]Object, error) {
	servers, err := s.Cloud.MarkedServers(ctx, markTag)
	if err != nil || len(servers) == 0 {
		return nil, err
	}
	if err := nameFlavors(ctx, s, servers); err != nil {
		return nil, err
	}
	if err := d.addPorts(ctx, s, servers); err != nil {
		return nil, err
	}
	lookup.FillFaults(ctx, s.Cloud, servers)
	found := make(map[uuid.UUID][]Object, len(servers))
	for _, server := range servers {
		if domain.StateOf(server.Status, server.Task) == domain.InstanceDeleted {
			continue
		}
		for _, tag := range server.Tags {
			if member, err := uuid.Parse(tag); err == nil {
				found[member] = append(found[member], machineObject(server))
			}
		}
	}
	return byMark(found, members), nil
}

// nameFlavors adds the ids of the servers' flavors, which Nova shows by their names.
func nameFlavors(ctx context.Context, s Session, servers []domain.Server) error {
	flavors, err := s.flavors(ctx)
	if err != nil {
		return err
	}
	ids := make(map[string]string, len(flavors))
	for _, f := range flavors {
		ids[f.Name] = f.ID
	}
	for n := range servers {
		servers[n].Flavor.ID = ids[servers[n].Flavor.Name]
	}
	return nil
}

// machineObject is a server as an object. One that is stopped, paused or shelved is ready and does not work.
func machineObject(server domain.Server) Object {
	o := Object{
		ID: server.ID, Name: server.Name, State: ObjectWorking, CreatedAt: server.CreatedAt, Raw: server,
		Phase: "Nova's status of the server is " + server.Status, ChangedAt: server.UpdatedAt,
	}
	if id, isTagged := server.CallTagged(); isTagged {
		o.Call = id.String()
	}
	if server.Task != "" {
		o.Phase += " (" + server.Task + ")"
	}
	switch domain.StateOf(server.Status, server.Task) {
	case domain.InstanceActive:
		o.State = ObjectReady
		if server.Task != "" {
			o.State = ObjectWorking
		}
	case domain.InstanceStopped, domain.InstanceShelved, domain.InstancePaused, domain.InstanceSuspended,
		domain.InstanceRescued:
		o.State, o.Reason = ObjectReady, "Nova's status of the server is "+server.Status
	case domain.InstanceError:
		o.State, o.Reason = ObjectError, "the server is in ERROR"
		if server.Fault != nil && server.Fault.Message != "" {
			o.Reason = server.Fault.Message
		}
	case domain.InstanceDeleting:
		o.State = ObjectDeleting
	}
	if server.Status == resized && server.Task == "" {
		o.State, o.Reason = ObjectReady, "the server has been resized, which is not confirmed yet"
	}
	return o
}

// resized is Nova's status of a server that has another flavor or host, until that is confirmed.
const resized = "VERIFY_RESIZE"

// Find implements Driver: a list by tag leaves out the servers of cells that are down, and those whose tags others
// have removed.
func (d *MachineDriver) Find(ctx context.Context, s Session, id string) (Object, error) {
	server, err := s.Cloud.Server(ctx, id)
	switch {
	case apperr.CodeOf(err) == apperr.NotFound && !s.cellsUp(ctx):
		return Object{ID: id}, nil // it may be in the cell that is down
	case err != nil:
		return Object{}, err
	case domain.StateOf(server.Status, server.Task) == domain.InstanceDeleted:
		return Object{}, apperr.New(apperr.NotFound, "the server %s is deleted", id)
	case server.Partial:
		return Object{ID: id}, nil
	}
	one := []domain.Server{server}
	if err = ofAnother(nameFlavors(ctx, s, one)); err == nil {
		err = ofAnother(d.addPorts(ctx, s, one))
	}
	return machineObject(one[0]), err
}

// ofAnother is the error of a call that reads more about an object that exists: its 404 is no miss of the object.
func ofAnother(err error) error {
	if apperr.CodeOf(err) != apperr.NotFound {
		return err
	}
	return apperr.Wrap(apperr.BadGateway, err, "%s", apperr.As(err).Message)
}

// Create implements Driver. The order is looked up by its id, and its server by its tag, before a create call is
// repeated.
func (d *MachineDriver) Create(ctx context.Context, s Session, in Desired) (string, error) {
	spec := read[domain.MachineSpec](in.Spec)
	userData, err := withFiles(in)
	if err != nil {
		return "", unsent(err)
	}
	order, err := d.order(ctx, s, in, spec)
	if err != nil {
		return "", err
	}
	out, err := d.Orders.Submit(ctx, orders.Session{
		Cloud: s.Cloud, UserID: s.UserID, UserData: []domain.Secret{userData},
		Prepare: func(ctx context.Context, order domain.Order, _ domain.Claim) (domain.Order, error) {
			if order.Undecided() == 0 || in.Sending == nil {
				return order, nil
			}
			return order, in.Sending(ctx)
		},
	}, order)
	if err != nil || len(out.Order.Instances) == 0 {
		return "", err
	}
	i := out.Order.Instances[0]
	if i.ServerID == "" && i.Problem != nil {
		return "", rejected(*i.Problem)
	}
	if i.ServerID == "" {
		return "", unrejected(out.Unfinished)
	}
	return i.ServerID, nil
}

// unrejected is why work on an order has stopped, which is no rejection of its server: such as a list that was
// forbidden. A create call may be open, and the next one is the order's, too.
func unrejected(unfinished error) error {
	if apperr.Final(unfinished) {
		return apperr.Wrap(apperr.BadGateway, unfinished, "%s", apperr.As(unfinished).Message)
	}
	return unfinished
}

// order is the order of a member's server: the one that is placed, or a new one.
func (d *MachineDriver) order(
	ctx context.Context, s Session, in Desired, spec domain.MachineSpec,
) (order domain.Order, err error) {
	id := uuid.NewSHA1(in.Member.ID, []byte("order")) // of its own: it has events of its own
	order, err = d.Orders.Orders.Get(ctx, s.ProjectID, id)
	switch {
	case err == nil:
		return order, nil
	case apperr.CodeOf(err) != apperr.NotFound:
		return order, unsent(err)
	}
	launch, err := launchSpec(ctx, s, in, spec)
	if err != nil {
		return order, unsent(err)
	}
	volumes, err := freeVolumes(in, spec)
	if err != nil {
		return order, unsent(err)
	}
	launch.Volumes = append(launch.Volumes, volumes...)
	if launch.ServerGroup, err = s.serverGroup(ctx, in.Resource); err != nil {
		return order, groupError(err)
	}
	digest := sha256.Sum256(in.Member.ID[:])
	return domain.Order{
		ID: id, ProjectID: s.ProjectID, DomainID: s.DomainID, UserID: s.UserID, BodySHA256: digest[:],
		Spec: domain.OrderSpec{IsManaged: true}, Actor: in.Resource.Actor,
		Instances: []domain.Instance{{
			ID: in.Member.ID, ProjectID: s.ProjectID, Name: in.Name, State: domain.InstanceRequested, Spec: launch,
			KeyName: launch.KeyName,
		}},
	}, nil
}

// groupError is why a server group was not made. A call without an answer may make it later, and then it is deleted
// with the resource: until then the member counts as requested.
func groupError(err error) error {
	if apperr.Rejected(err) {
		return unsent(err)
	}
	return err
}

// rejected is Nova's final answer to a create call.
func rejected(p domain.Problem) error {
	err := apperr.New(apperr.Code(p.Code), "%s", p.Detail)
	if !apperr.Final(err) {
		err.Code = apperr.Conflict
	}
	return err
}

// withFiles are the user_data of a server, with the files of its configmaps and what starts its containers.
func withFiles(in Desired) (domain.Secret, error) {
	files, ok := in.Inventory.files(read[domain.MachineSpec](in.Spec))
	if !ok {
		return "", Waits("NoConfigmap", "a configmap of the server is deleted")
	}
	maps.Copy(files, PodFiles(read[domain.PodTemplate](in.Spec)))
	return WithFiles(domain.Secret(in.Secrets.UserData), files)
}

// Check implements Checker. It makes the server group of a deployment whose affinity has changed, as Create would.
func (*MachineDriver) Check(ctx context.Context, s Session, in Desired) error {
	spec := read[domain.MachineSpec](in.Spec)
	if _, err := launchSpec(ctx, s, in, spec); err != nil {
		return err
	}
	if _, err := withFiles(in); err != nil {
		return err
	}
	for _, name := range spec.Volumes {
		if err := becomesFree(in, name); err != nil {
			return err
		}
	}
	if err := checkZone(ctx, s, in.Resource.Schedule.Zone); err != nil {
		return err
	}
	if err := checkKeyPair(ctx, s, spec.KeyName); err != nil {
		return err
	}
	_, err := s.serverGroup(ctx, in.Resource)
	return err
}

// checkKeyPair looks up a key pair among those of the session's user; "" = none is named.
func checkKeyPair(ctx context.Context, s Session, name string) error {
	if name == "" {
		return nil
	}
	pairs, err := s.keyPairs(ctx)
	if err != nil {
		return err
	}
	return lookup.CheckKeyPair(pairs, lookup.Ref{Field: "spec.key_name", Value: name})
}

// checkZone looks up an availability zone that Nova places new servers in; "" = none is named.
func checkZone(ctx context.Context, s Session, name string) error {
	if name == "" {
		return nil
	}
	zones, err := s.zones(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, zone := range zones {
		if zone.Available {
			names = append(names, zone.Name)
		}
	}
	if name, _, _ = strings.Cut(name, ":"); !slices.Contains(names, name) { // a host may follow
		return lookup.Absent("schedule.zone", "available zone", name, names)
	}
	return nil
}

// Delete implements Driver. Volumes are detached by Nova.
func (d *MachineDriver) Delete(ctx context.Context, s Session, o Object) error {
	server, ok := o.Raw.(domain.Server)
	if !ok { // no list shows it: it is deleted once one does
		return Waits("NotObserved", "no list shows the server %s", o.ID)
	}
	a := actions.Action{
		ActionRequest: domain.ActionRequest{Action: domain.Delete}, ServerID: o.ID, ProjectID: s.ProjectID, Force: true,
	}
	for _, tag := range server.Tags {
		if _, err := uuid.Parse(tag); err != nil {
			continue
		}
		found, err := d.Instances.Find(ctx, domain.Filter{ProjectID: s.ProjectID}, []string{tag})
		if err != nil {
			return err
		}
		if len(found) == 1 && found[0].ServerID == o.ID {
			a.Instance = found[0]
		}
	}
	_, err := d.Actions.Run(ctx, s.Cloud, a)
	if apperr.CodeOf(err) == apperr.NotFound {
		return nil
	}
	return err
}

// groupName is the name of a deployment's server group. The policy of a group cannot change, so each policy has one.
func groupName(m domain.Managed, policy string) string {
	return "cloudfn-" + m.ID.String() + "-" + policy
}

// groupPolicies are the policies of server groups, by the affinity of the schedule.
var groupPolicies = map[string]string{"spread": "soft-anti-affinity", "pack": "soft-affinity"}

// Finish implements Finisher: it deletes the deployment's server groups.
func (*MachineDriver) Finish(ctx context.Context, s Session, m domain.Managed) error {
	if !m.Kind.IsDeployment() {
		return nil
	}
	for _, policy := range groupPolicies {
		if err := s.Cloud.DeleteServerGroups(ctx, groupName(m, policy)); err != nil {
			return err
		}
	}
	return nil
}

// freeVolumes returns the volumes that a new server gets in its create call, so that its first boot finds them. It
// waits until no other server has them.
func freeVolumes(in Desired, spec domain.MachineSpec) ([]domain.ServerVolume, error) {
	var all []domain.ServerVolume
	for _, name := range spec.Volumes {
		v, err := freeVolume(in, name)
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
	return all, nil
}

// freeVolume returns a managed volume that a server can get now. It waits while another one has it. Several servers can
// have one of a multiattach type, but not a server and the one that replaces it.
func freeVolume(in Desired, name string) (domain.ServerVolume, error) {
	o := in.Inventory.volume(name)
	switch v, isKnown := o.Raw.(domain.Volume); {
	case !isKnown:
		return domain.ServerVolume{}, Waits("VolumeUnknown", "no list shows volume %s", name)
	case v.Status == "available", v.Status == "in-use" && v.IsMultiattach && !in.isReplacing(v.Servers):
		return domain.ServerVolume{ID: o.ID, IsMultiattach: v.IsMultiattach}, nil
	case len(v.Servers) > 0:
		return domain.ServerVolume{}, Waits("VolumeInUse", "volume %s is attached to server %s", name,
			strings.Join(v.Servers, ", "))
	default:
		return domain.ServerVolume{}, Waits("VolumeInUse", "Cinder's status of volume %s is %s", name, v.Status)
	}
}

// becomesFree waits while a volume is at a server that keeps it. What replaces the server that has it may get it, and a
// server that is not declared with it any more loses it.
func becomesFree(in Desired, name string) error {
	_, wait := freeVolume(in, name)
	v := raw[domain.Volume](in.Inventory.volume(name))
	if wait == nil || v.Status != "in-use" || slices.ContainsFunc(v.Servers, func(id string) bool {
		return id != in.Inventory.objectID(in.Member) && in.Inventory.keepsVolume(id, name)
	}) {
		return wait
	}
	return nil
}

// keepsVolume reports whether a server keeps a volume that it has: it is no managed one, or is declared with it.
func (a Inventory) keepsVolume(server, name string) bool {
	for ref, m := range a.resources {
		for _, member := range m.Members {
			if ref.Kind.IsServer() && !ref.Kind.IsDeployment() && a.objectID(member) == server {
				return m.Request != domain.ManagedDelete &&
					slices.Contains(read[domain.MachineSpec](m.Spec).Volumes, name)
			}
		}
	}
	return true
}

// isReplacing reports whether another server of the same VirtualMachine or Pod is one of these.
func (w Desired) isReplacing(servers []string) bool {
	return !w.Resource.Kind.IsDeployment() && slices.ContainsFunc(w.Resource.Members, func(m domain.Member) bool {
		return m.ID != w.Member.ID && slices.Contains(servers, w.Inventory.objectID(m))
	})
}

// isAttaching reports whether a volume that Nova shows at a running server is not there yet. The volumes of a shelved
// server are reserved for it.
func isAttaching(o Object, server domain.Server) bool {
	v, isKnown := o.Raw.(domain.Volume)
	return isKnown && (v.Status == "attaching" || v.Status == "reserved") && server.Status == "ACTIVE" &&
		!slices.Contains(v.Servers, server.ID)
}
