package leases

import (
	"cmp"
	"context"
	"fmt"
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

	servers map[int]leasedServer // by the index of the instance's reservation, as far as they were read

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
	if err != nil {
		return out, err
	}
	field := func(name string) string { return fmt.Sprintf("reservations[%d].%s", n, name) }
	server, isRead := p.servers[of]
	if !isRead {
		server, err = p.serverOf(ctx, in.Reservations[of])
		p.servers[of] = server
	}
	switch {
	case err != nil:
	case r.VolumeID != nil:
		out.Volume.ID = r.VolumeID.String()
		err = p.checkExisting(ctx, server, out.Volume.ID, field("volume_id"))
	default:
		out.Volume.Name = cmp.Or(r.Name, in.Name)
		err = p.checkNew(ctx, *out.Volume, field)
	}
	return out, err
}

// leasedServer is the server of a leased instance. Its id is empty as long as it has none.
type leasedServer struct {
	id       string
	attached []domain.VolumeAttachment
}

// serverOf reads the server of an instance's reservation. It is Unsupported where Nova is too old for leased volumes.
func (p *volumePool) serverOf(ctx context.Context, r ReservationRequest) (leasedServer, error) {
	server := leasedServer{id: r.ServerID.OrNil().String()}
	if r.InstanceID != nil {
		found, err := p.instances.Find(ctx, domain.Filter{ProjectID: p.projectID}, []string{r.InstanceID.String()})
		if err != nil {
			return server, err
		}
		server.id = found[0].ServerID
	}
	if server.id == "" {
		return server, nil
	}
	var err error
	server.attached, err = p.cloud.Attachments(ctx, server.id)
	if apperr.CodeOf(err) == apperr.NotFound { // the reservation of the instance says so
		err = nil
	}
	return server, err
}

// checkExisting rejects a volume that the project does not have, or that the lease cannot attach to the server and
// detach. What its owner may change until the start counts only for a lease that begins now.
func (p *volumePool) checkExisting(ctx context.Context, server leasedServer, id, field string) error {
	v, err := p.cloud.OwnVolume(ctx, id, p.projectID)
	if apperr.CodeOf(err) == apperr.NotFound {
		return apperr.Unknown(field, "volume", id)
	}
	if err != nil {
		return err
	}
	isBoot, err := p.isBoot(ctx, server, v)
	if err != nil {
		return err
	}
	detail := ""
	switch {
	case isBoot:
		detail = "the server " + server.id + " boots from it, and it cannot be detached"
	case !p.isNow:
	case len(v.Servers) > 0 && !v.IsMultiattach && v.Servers[0] != server.id:
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

// isBoot reports whether the server boots from the volume.
func (p *volumePool) isBoot(ctx context.Context, of leasedServer, v domain.Volume) (bool, error) {
	if !v.IsBootable || of.id == "" {
		return false, nil
	}
	server, err := p.cloud.Server(ctx, of.id)
	if apperr.CodeOf(err) == apperr.NotFound {
		return false, nil
	}
	return err == nil && server.Image == nil && server.BootVolume(of.attached) == v.ID, err
}

// checkNew rejects a volume that Cinder would not make. The quota is compared only for a lease that begins now.
func (p *volumePool) checkNew(ctx context.Context, v domain.LeasedVolume, field func(string) string) (err error) {
	if v.Type != "" && p.types == nil {
		if p.types, err = p.cloud.VolumeTypes(ctx); err != nil {
			return err
		}
	}
	if v.Type != "" {
		wanted := lookup.Ref{Field: field("volume_type"), Value: v.Type}
		if _, err := lookup.PickVolumeType(p.types, wanted); err != nil {
			return err
		}
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
