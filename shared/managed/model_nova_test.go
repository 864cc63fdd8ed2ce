package managed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var modelFlavors = []domain.Flavor{
	{ID: "1", Name: "tiny", VCPUs: 1, RAMMB: 64, DiskGB: 1}, {ID: "2", Name: "small", VCPUs: 1, RAMMB: 128, DiskGB: 1},
}

func modelServer(o *modelObject) domain.Server {
	s := o.server
	s.Tags, s.Metadata, s.VolumeIDs = slices.Clone(s.Tags), maps.Clone(s.Metadata), slices.Clone(s.VolumeIDs)
	s.Flavor.ID = ""
	return s
}

// isServer gives a server a status without a task, now.
func (o *modelObject) isServer(status string) {
	o.server.Status, o.server.Task, o.server.UpdatedAt = status, "", time.Now()
	o.hasData = o.hasData || status == "ACTIVE"
}

// attach gives a server a volume. It is there when the server runs.
func (c *modelCloud) attach(o *modelObject, id string) error {
	v, err := c.get(domain.KindVolume, id)
	switch {
	case err != nil:
		return apperr.New(apperr.Invalid, "there is no volume %s", id)
	case v.volume.Status != "available":
		return apperr.New(apperr.Invalid, "volume %s is %s", id, v.volume.Status)
	}
	v.isVolume("reserved")
	o.server.VolumeIDs = append(o.server.VolumeIDs, id)
	return nil
}

// attached ends the attachment of a server's volumes.
func (c *modelCloud) attached(o *modelObject) {
	for _, id := range o.server.VolumeIDs {
		if v, err := c.get(domain.KindVolume, id); err == nil && len(v.volume.Servers) == 0 {
			v.volume.Servers = []string{o.id}
			v.isVolume("in-use")
		}
	}
}

func (c *modelCloud) detach(o *modelObject, id string) {
	o.server.VolumeIDs = slices.DeleteFunc(o.server.VolumeIDs, func(one string) bool { return one == id })
	if v, err := c.get(domain.KindVolume, id); err == nil {
		v.volume.Servers = nil
		v.isVolume("available")
	}
}

// deleteServer begins to delete a server, whose volumes are free when it is deleted.
func (c *modelCloud) deleteServer(o *modelObject) {
	o.server.Task = "deleting"
	o.changes = nil
	o.after(2*time.Second, func() {
		for _, id := range slices.Clone(o.server.VolumeIDs) {
			c.detach(o, id)
		}
		o.isDeleted = true
	})
}

// isDown reports whether a cell of Nova is down in a run.
func (v modelView) isDown() bool { return v.run.isDown || v.run.rate > 0 && v.run.seed%7 == 0 }

// inCell reports whether a server is in the cell that may be down.
func (o *modelObject) inCell() bool { return o.id[0] < '8' }

func (v modelView) CellsUp(context.Context, string) error {
	if v.isDown() {
		return apperr.New(apperr.BadGateway, "a cell is down")
	}
	return nil
}

func (v modelView) Flavors(ctx context.Context) ([]domain.Flavor, error) {
	return modelList(ctx, v, "Flavors", "all", func() ([]domain.Flavor, error) { return modelFlavors, nil })
}

func (v modelView) SecurityGroups(context.Context) ([]domain.SecurityGroup, error) {
	return []domain.SecurityGroup{{ID: "g", Name: "default"}}, nil
}

// ServerPorts: this model has no ports, so a server's are not compared.
func (modelView) ServerPorts(context.Context, string, string) ([]domain.Port, error) {
	return nil, apperr.New(apperr.Forbidden, "ports are withheld")
}

func (v modelView) Networks(ctx context.Context) ([]domain.Network, error) {
	return v.NetworkNames(ctx)
}

func (v modelView) NetworkNames(ctx context.Context) ([]domain.Network, error) {
	return modelList(ctx, v, "Networks", "all", func() ([]domain.Network, error) {
		return []domain.Network{{ID: "n", Name: "private", Subnets: []domain.Subnet{{ID: "s"}}}}, nil
	})
}

func (v modelView) KeyPairs(context.Context) ([]domain.KeyPair, error) {
	return []domain.KeyPair{{Name: "mine"}}, nil
}

func (v modelView) EnsureServerGroup(ctx context.Context, name, _ string) (string, error) {
	return "group of " + name, v.write(ctx, "EnsureServerGroup", "group", func(bool) error {
		v.c.groups[name] = true
		return nil
	})
}

func (v modelView) DeleteServerGroups(ctx context.Context, name string) error {
	return v.write(ctx, "DeleteServerGroups", "group", func(bool) error {
		delete(v.c.groups, name)
		return nil
	})
}

func (v modelView) servers(tags ...string) (all []domain.Server) {
	for _, o := range v.c.of(domain.KindMachine) {
		hasAll := !slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(o.server.Tags, tag) })
		if hasAll && (!v.isDown() || !o.inCell()) {
			all = append(all, modelServer(o))
		}
	}
	return all
}

func (v modelView) MarkedServers(ctx context.Context, tag string) ([]domain.Server, error) {
	return modelList(ctx, v, "MarkedServers", "", func() ([]domain.Server, error) { return v.servers(tag), nil })
}

// Servers fails while a cell is down: lists of one order's servers are read again later.
func (v modelView) Servers(ctx context.Context, q domain.ServerQuery) ([]domain.Server, bool, error) {
	all, err := modelList(ctx, v, "Servers", q.Tags[0], func() ([]domain.Server, error) {
		return v.servers(q.Tags...), nil
	})
	return all, false, err
}

func (v modelView) Server(ctx context.Context, id string) (domain.Server, error) {
	s, err := modelRead(ctx, v, "Server", domain.KindMachine, id, modelServer)
	if err == nil && v.isDown() && id[0] < '8' {
		return domain.Server{ID: id, Status: "UNKNOWN", Partial: true, ProjectID: "p", CreatedAt: s.CreatedAt}, nil
	}
	return s, err
}

// EnsureFloatingIP is never called: managed servers have no floating IPs.
func (v modelView) EnsureFloatingIP(
	context.Context, string, domain.FloatingIPAttach,
) (domain.FloatingIP, bool, error) {
	return domain.FloatingIP{}, false, errors.New("a managed server has no floating IP")
}

// ReleaseFloatingIPs is never called, as EnsureFloatingIP is not.
func (v modelView) ReleaseFloatingIPs(context.Context, string, string) error {
	return errors.New("a managed server has no floating IP")
}

// SetNetworkGroups is never called: managed servers have the same security groups on all their networks.
func (v modelView) SetNetworkGroups(context.Context, string, []domain.Attachment) (bool, error) {
	return false, errors.New("a managed server needs no step for its security groups")
}

// SetVolumes is never called: the volumes of managed servers stay as their create call leaves them.
func (v modelView) SetVolumes(context.Context, string, []domain.ServerVolume) error {
	return errors.New("a managed server needs no step for its volumes")
}

func (v modelView) CreateServer(
	ctx context.Context, spec domain.LaunchSpec, name string, userData domain.Secret, tags []string,
) (id string, err error) {
	id = v.run.newID("server " + name)
	return id, v.write(ctx, "CreateServer", name, func(breaks bool) error {
		n := slices.IndexFunc(modelFlavors, func(f domain.Flavor) bool { return f.ID == spec.FlavorID })
		now, mark := time.Now(), slices.IndexFunc(tags, func(tag string) bool { return uuid.Validate(tag) == nil })
		o := &modelObject{
			kind: domain.KindMachine, id: id, label: name, member: uuid.MustParse(tags[mark]),
			userData: userData.Reveal(), server: domain.Server{
				ID: id, Name: name, Status: "BUILD", Tags: slices.Clone(tags), ProjectID: "p", UserID: "u",
				CreatedAt: now, UpdatedAt: now, Image: &domain.ImageRef{ID: spec.ImageID},
				Metadata: maps.Clone(spec.Metadata),
				Flavor:   domain.FlavorRef{Name: modelFlavors[n].Name}, HostID: "host",
				Addresses: []domain.Address{{Network: "private", IP: v.c.address(), Version: 4, Type: "fixed"}},
			},
		}
		for _, one := range spec.Volumes {
			if err := v.c.attach(o, one.ID); err != nil {
				for _, id := range slices.Clone(o.server.VolumeIDs) {
					v.c.detach(o, id)
				}
				return err
			}
		}
		v.c.add(o)
		o.after(4*time.Second, func() {
			if breaks {
				o.isServer("ERROR")
				o.server.Fault = &domain.Fault{Code: 500, Message: "No valid host was found."}
				return
			}
			v.c.attached(o)
			o.isServer("ACTIVE")
		})
		return nil
	})
}

// address is one that no other server has.
func (c *modelCloud) address() string { return fmt.Sprintf("10.0.2.%d", len(c.objects)%250) }

func (v modelView) DeleteServer(ctx context.Context, id string) error {
	return v.change(ctx, "DeleteServer", domain.KindMachine, id, func(o *modelObject, _ bool) error {
		if o.server.Task != "deleting" {
			v.c.deletes(o, v.run)
			v.c.deleteServer(o)
		}
		return nil
	})
}

func (v modelView) TagServer(ctx context.Context, id, tag string) error {
	return v.change(ctx, "TagServer", domain.KindMachine, id, func(o *modelObject, _ bool) error {
		if !slices.Contains(o.server.Tags, tag) {
			o.server.Tags = append(o.server.Tags, tag)
		}
		return nil
	})
}

func (v modelView) UntagServer(ctx context.Context, id, tag string) error {
	return absentIsDeleted(v.change(ctx, "UntagServer", domain.KindMachine, id, func(o *modelObject, _ bool) error {
		o.server.Tags = slices.DeleteFunc(o.server.Tags, func(one string) bool { return one == tag })
		return nil
	}))
}

func (v modelView) RenameServer(ctx context.Context, id, name string) error {
	return v.change(ctx, "RenameServer", domain.KindMachine, id, func(o *modelObject, _ bool) error {
		o.server.Name, o.server.UpdatedAt = name, time.Now()
		return nil
	})
}

func (v modelView) SetServerMetadata(ctx context.Context, id string, set map[string]string, remove []string) error {
	return v.change(ctx, "SetServerMetadata", domain.KindMachine, id, func(o *modelObject, _ bool) error {
		if o.server.Metadata == nil {
			o.server.Metadata = map[string]string{}
		}
		maps.Copy(o.server.Metadata, set)
		maps.DeleteFunc(o.server.Metadata, func(key, _ string) bool { return slices.Contains(remove, key) })
		return nil
	})
}

// working is a change that Nova takes only of a server that does nothing else.
func (v modelView) working(
	ctx context.Context, method, id, status string, from []string, do func(o *modelObject, breaks bool),
) error {
	return v.change(ctx, method, domain.KindMachine, id, func(o *modelObject, breaks bool) error {
		if !slices.Contains(from, o.server.Status) || o.server.Task != "" {
			return apperr.New(apperr.Conflict, "cannot do it while the server is %s %s", o.server.Status, o.server.Task)
		}
		o.isServer(status)
		o.after(4*time.Second, func() { do(o, breaks) })
		return nil
	})
}

// ResizeServer breaks when no host takes the server: it is as before.
func (v modelView) ResizeServer(ctx context.Context, id, flavorID string) error {
	n := slices.IndexFunc(modelFlavors, func(f domain.Flavor) bool { return f.ID == flavorID })
	return v.working(ctx, "ResizeServer", id, "RESIZE", []string{"ACTIVE", "SHUTOFF"},
		func(o *modelObject, breaks bool) {
			if breaks {
				o.isServer("ACTIVE")
				return
			}
			o.server.Flavor.Name = modelFlavors[n].Name
			o.isServer(resized)
		})
}

func (v modelView) ConfirmMigration(ctx context.Context, id string) error {
	return v.working(ctx, "ConfirmMigration", id, resized, []string{resized},
		func(o *modelObject, _ bool) { o.isServer("ACTIVE") })
}

// RebuildImage breaks when the new disk cannot be made.
func (v modelView) RebuildImage(ctx context.Context, id, imageID string, userData domain.Secret) error {
	return v.working(ctx, "RebuildImage", id, "REBUILD", []string{"ACTIVE", "SHUTOFF", "ERROR"},
		func(o *modelObject, breaks bool) {
			o.server.Image = &domain.ImageRef{ID: imageID} // immediately in Nova
			o.userData = userData.Reveal()
			if breaks {
				o.isServer("ERROR")
				o.server.Fault = &domain.Fault{Code: 500, Message: "the disk was not made"}
				return
			}
			o.isServer("ACTIVE")
		})
}

func (v modelView) AttachVolume(ctx context.Context, serverID string, volume domain.ServerVolume) error {
	return v.change(ctx, "AttachVolume", domain.KindMachine, serverID, func(o *modelObject, _ bool) error {
		if slices.Contains(o.server.VolumeIDs, volume.ID) {
			return nil
		}
		if !slices.Contains([]string{"ACTIVE", "SHUTOFF", "PAUSED", resized}, o.server.Status) || o.server.Task != "" {
			return apperr.New(apperr.Conflict, "cannot attach while the server is %s", o.server.Status)
		}
		if err := v.c.attach(o, volume.ID); err != nil {
			return err
		}
		o.after(time.Second, func() { v.c.attached(o) })
		return nil
	})
}

func (v modelView) DetachVolume(ctx context.Context, serverID, volumeID string) error {
	return absentIsDeleted(v.change(ctx, "DetachVolume", domain.KindMachine, serverID,
		func(o *modelObject, _ bool) error {
			if !slices.Contains(o.server.VolumeIDs, volumeID) {
				return apperr.New(apperr.NotFound, "the server has no volume %s", volumeID)
			}
			if d, err := v.c.get(domain.KindVolume, volumeID); err == nil {
				d.isVolume("detaching")
			}
			o.after(time.Second, func() { v.c.detach(o, volumeID) })
			return nil
		}))
}
