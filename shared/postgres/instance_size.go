package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/domain"
)

// sizeOf is the part of a spec that a resize or a rebuild changes, as it is stored.
func sizeOf(s domain.LaunchSpec) map[string]any {
	var ref any // null, as in a spec without one
	if s.ImageRef != "" {
		ref = s.ImageRef
	}
	return map[string]any{
		"flavor_id": s.FlavorID, "flavor_name": s.FlavorName, "vcpus": s.VCPUs, "ram_mb": s.RAMMB, "disk_gb": s.DiskGB,
		"base_flavor_id": s.BaseFlavorID, "base_flavor_name": s.BaseFlavorName, "image_id": s.ImageID, "image": ref,
	}
}

// Reads that began before this moment show the size of before.
const setSizeSQL = `
update instances set spec = spec || $3, seen_at = clock_timestamp() where project_id = $1 and id = $2`

// SetSize stores the size that an instance is about to have, by the Spec of wanted. Its connection (zero = not to be
// checked) must permit to resize, and what is added has to fit its quota, also of two requests together.
func (i Instances) SetSize(ctx context.Context, wanted domain.Instance) error {
	return i.DB.change(ctx, func(tx pgx.Tx) error {
		if wanted.ConnectionID != uuid.Nil {
			before, err := queryValue[domain.LaunchSpec](ctx, tx,
				"select spec from instances where project_id = $1 and id = $2", wanted.ProjectID, wanted.ID)
			if err != nil {
				return err
			}
			more := domain.Need{
				VCPUs: max(0, wanted.Spec.VCPUs-before.VCPUs), RAMMB: max(0, wanted.Spec.RAMMB-before.RAMMB),
			}
			if err := admit(ctx, tx, wanted.ProjectID, wanted.ConnectionID, domain.MayResize, more); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, setSizeSQL, wanted.ProjectID, wanted.ID, sizeOf(wanted.Spec))
		return err
	})
}
