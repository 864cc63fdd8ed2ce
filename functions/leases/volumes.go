package leases

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
	"github.com/cloudfn/cloudfn/shared/openstack"
	"github.com/cloudfn/cloudfn/shared/postgres"
)

// volumePool is what the volumes of a request are compared with, as the caller sees it.
type volumePool struct {
	cloud     *openstack.Session
	instances postgres.Instances
	projectID string
	isNow     bool // the lease begins now

	types []domain.VolumeType // nil until they are needed
	count int                 // of the new volumes so far, and their size
	sizes int
}

// reservation is the nth one of a request, of a volume.
func (p *volumePool) reservation(ctx context.Context, in CreateLease, n int) (domain.Reservation, error) {
	r := in.Reservations[n]
	of, err := in.instanceOf(r)
	out := domain.Reservation{
		ID: uuid.New(), Type: r.Type, Status: domain.ReservationPending,
		Volume: &domain.LeasedVolume{
			InstanceIndex: of, IsNew: r.VolumeID == nil, SizeGB: r.SizeGB, Type: r.VolumeType,
			OnEnd: cmp.Or(r.OnEnd, domain.VolumeEndKeep),
		},
	}
	field := func(name string) string { return fmt.Sprintf("reservations[%d].%s", n, name) }
	switch {
	case err != nil:
	case r.VolumeID != nil:
		out.Volume.ID = r.VolumeID.String()
		err = p.checkExisting(ctx, in.Reservations[of], out.Volume.ID, field("volume_id"))
	default:
		out.Volume.Name = cmp.Or(r.Name, in.Name)
		err = p.checkNew(ctx, *out.Volume, field)
	}
	return out, err
}

// checkExisting rejects a volume that the project does not have, or that the lease cannot attach to the instance of a
// reservation and detach. What its owner may change until the start counts only for a lease that begins now.
func (p *volumePool) checkExisting(ctx context.Context, of ReservationRequest, id, field string) error {
	v, err := p.cloud.OwnVolume(ctx, id, p.projectID)
	if apperr.CodeOf(err) == apperr.NotFound {
		return apperr.Unknown(field, "volume", id)
	}
	if err != nil {
		return err
	}
	server := of.ServerID.OrNil().String()
	if of.InstanceID != nil {
		found, err := p.instances.Find(ctx, domain.Filter{ProjectID: p.projectID}, []string{of.InstanceID.String()})
		if err != nil {
			return err
		}
		server = found[0].ServerID
	}
	isBoot, err := p.isBoot(ctx, server, v)
	if err != nil {
		return err
	}
	detail := ""
	switch {
	case isBoot:
		detail = "the server " + server + " boots from it, and it cannot be detached"
	case !p.isNow:
	case len(v.Servers) > 0 && !v.IsMultiattach && v.Servers[0] != server:
		detail = "is attached to the server " + v.Servers[0] + ": detach it first"
	case strings.HasPrefix(v.Status, "error"):
		detail = "has Cinder's status " + v.Status
	}
	if detail == "" {
		return nil
	}
	refusal := apperr.InvalidField(field, detail)
	refusal.Code = apperr.Conflict
	return refusal
}

// isBoot reports whether the server boots from the volume; "" = the instance has no server yet.
func (p *volumePool) isBoot(ctx context.Context, serverID string, v domain.Volume) (bool, error) {
	if !v.IsBootable || serverID == "" {
		return false, nil
	}
	server, err := p.cloud.Server(ctx, serverID)
	if err == nil && server.Image == nil {
		attached, err := p.cloud.Attachments(ctx, serverID)
		return server.BootVolume(attached) == v.ID, err
	}
	if apperr.CodeOf(err) == apperr.NotFound { // the reservation of the instance says so
		err = nil
	}
	return false, err
}

// checkNew rejects a volume that Cinder would not make. The quota is compared only for a lease that begins now.
func (p *volumePool) checkNew(ctx context.Context, v domain.LeasedVolume, field func(string) string) (err error) {
	if v.Type != "" && p.types == nil {
		if p.types, err = p.cloud.VolumeTypes(ctx); err != nil {
			return err
		}
	}
	isType := func(t domain.VolumeType) bool { return t.ID == v.Type || t.Name == v.Type }
	if v.Type != "" && !slices.ContainsFunc(p.types, isType) {
		var names []string
		for _, t := range p.types {
			names = append(names, t.Name)
		}
		return lookup.Absent(field("volume_type"), "volume type", v.Type, names)
	}
	if !p.isNow {
		return nil
	}
	quota, err := p.cloud.VolumeQuota(ctx)
	if err != nil {
		return err
	}
	p.count, p.sizes = p.count+1, p.sizes+v.SizeGB
	if lacks := quota.Shortages(p.count, p.sizes); len(lacks) > 0 {
		refusal := apperr.InvalidField(field("size_gb"), lacks[0])
		refusal.Code = apperr.Quota
		return refusal
	}
	return nil
}
