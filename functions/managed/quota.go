package managed

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/lookup"
)

// checkQuota rejects more servers than the project's quota has room for. The trust of a declaration acts in the same
// project, so its servers would be refused later. What Nova cannot say now, reconcile-managed finds out.
func (s service) checkQuota(ctx context.Context, cloud session, before domain.Managed, spec json.RawMessage) error {
	var declared domain.DeploymentSpec
	_ = json.Unmarshal(spec, &declared) // it was checked
	field := "spec.count"
	switch before.Kind {
	case domain.KindMachine:
		declared.Count, field = 1, "spec.flavor"
	case domain.KindDeployment:
	default:
		return nil
	}
	more := declared.Count
	for _, m := range before.Members {
		if m.ObjectID != "" && m.Status != domain.MemberDeleting {
			more--
		}
	}
	if more <= 0 {
		return nil
	}
	quota, err := cloud.Quota(ctx)
	if err != nil {
		slog.WarnContext(ctx, "the quota is not checked", "project_id", before.ProjectID, "error", err)
		return nil
	}
	size := domain.Flavor{}
	if flavors, err := cloud.Flavors(ctx); err == nil { // an unknown flavor has no size, and is refused later
		size, _ = lookup.PickFlavor(flavors, lookup.Ref{Field: "spec.flavor", Value: declared.Flavor})
	}
	for _, q := range []struct {
		what string
		item domain.QuotaItem
		need int
	}{
		{"instances", quota.Instances, more},
		{"vcpus", quota.VCPUs, more * size.VCPUs},
		{"ram_mb", quota.RAMMB, more * size.RAMMB},
	} {
		if q.need == 0 || q.item.Fits(q.need) {
			continue
		}
		left := max(0, q.item.Max-q.item.Used)
		detail := fmt.Sprintf("needs %d %s, %d of %d are left", q.need, q.what, left, q.item.Max)
		e := apperr.New(apperr.Quota, "the project's quota does not allow it: %s %s", field, detail)
		e.Fields = []apperr.Field{{Field: field, Detail: detail}}
		return e
	}
	return nil
}
