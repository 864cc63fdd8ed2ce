package actions

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// prepare finds what the arguments name, and rejects what Nova, or its driver, would reject.
func (x *executor) prepare(ctx context.Context, server domain.Server) error {
	switch x.Action.Action {
	case domain.Resize:
		return x.prepareResize(ctx, server)
	case domain.Rebuild, domain.Rescue:
		return x.prepareImage(ctx, server)
	}
	return nil
}

// prepareImage finds the image. The default of a rebuild is the server's own, and Nova has one for a rescue.
func (x *executor) prepareImage(ctx context.Context, server domain.Server) error {
	const field = "image"
	switch ref := x.Arguments.Image; {
	case ref == "" && x.Action.Action == domain.Rescue && len(x.Limits.Images) == 0:
		return nil
	case ref == "" && x.Action.Action == domain.Rescue:
		return apperr.InvalidField(field, "must be given, because the connection allows only some images",
			lookup.Some(slices.Clone(x.Limits.Images))...)
	case ref == "" && server.Image == nil:
		return apperr.InvalidField(field, "must be given, because the server boots from a volume")
	case ref == "":
		x.Arguments.Image = server.Image.ID
		return x.Limits.CheckImage(field, server.Image.ID)
	}
	images, err := lookup.FindImages(ctx, x.cloud, x.Arguments.Image)
	if err != nil {
		return err
	}
	image, err := lookup.PickAllowedImage(images, lookup.Ref{Field: field, Value: x.Arguments.Image}, x.Limits)
	if err != nil {
		return err
	}
	if !lookup.IsActive(image) {
		return apperr.InvalidField(field, fmt.Sprintf("the image %s is %s, and not active", image.ID, image.Status))
	}
	x.Arguments.Image = image.ID
	return nil
}

// prepareResize finds the flavor. Through a connection, its quota is taken before Nova is called.
func (x *executor) prepareResize(ctx context.Context, server domain.Server) error {
	flavors, err := x.cloud.Flavors(ctx)
	if err != nil {
		return err
	}
	flavor, err := lookup.PickFlavor(flavors, lookup.Ref{Field: "flavor", Value: x.Arguments.Flavor})
	if err != nil {
		return err
	}
	if err := x.Limits.CheckFlavor("flavor", flavor.ID, flavor.Name); err != nil {
		return err
	}
	if err := checkResize(server, flavor); err != nil {
		return err
	}
	x.Arguments.Flavor = flavor.ID
	if !x.takesQuota() {
		return nil
	}
	x.resized = &flavor
	wanted := x.Instance
	wanted.Spec.Resized(flavor)
	return x.Instances.SetSize(ctx, wanted)
}

// takesQuota reports whether a connection's quota is to be respected: its owner may give any size to the servers.
func (x *executor) takesQuota() bool {
	return x.Action.Action == domain.Resize && x.Follow != nil && x.Instance.ConnectionID != uuid.Nil &&
		x.Lease == uuid.Nil
}

// restoreSize gives quota back after Nova has certainly rejected a resize. On failure the next read of the server does.
func (x *executor) restoreSize(ctx context.Context, rejection error) {
	if x.resized != nil && apperr.Rejected(rejection) {
		x.storeSize(ctx, x.Instance)
	}
}

// keepSize stores the size again once Nova has accepted the resize: a poll may have stored the flavor that Nova showed
// until then, and stores none while the server is resized.
func (x *executor) keepSize(ctx context.Context) {
	if x.resized == nil {
		return
	}
	wanted := x.Instance
	wanted.Spec.Resized(*x.resized)
	x.storeSize(ctx, wanted)
}

// storeSize stores a size, whatever the quota is, also when the client hangs up.
func (x *executor) storeSize(ctx context.Context, i domain.Instance) {
	writing, cancel := domain.Detached(ctx)
	defer cancel()
	i.ConnectionID = uuid.Nil
	if err := x.Instances.SetSize(writing, i); err != nil {
		slog.WarnContext(ctx, "the size of an instance is not stored; a poll stores it once Nova shows it",
			"instance_id", i.ID, "error", err)
	}
}

// checkResize rejects the server's own flavor, as Nova does, and a smaller disk, which only its drivers reject: they
// leave the server as it is, and Nova's answer does not say so. The disk of a server that boots from a volume stays.
func checkResize(server domain.Server, to domain.Flavor) error {
	is := server.Flavor
	switch {
	case is.Name == to.Name && is.VCPUs == to.VCPUs && is.RAMMB == to.RAMMB && is.DiskGB == to.DiskGB:
		return apperr.InvalidField("flavor", "is the flavor that the server has")
	case server.Image != nil && to.DiskGB < is.DiskGB:
		return apperr.InvalidField("flavor", fmt.Sprintf(
			"has a disk of %d GiB, and the server one of %d GiB, which cannot shrink", to.DiskGB, is.DiskGB))
	}
	return nil
}
