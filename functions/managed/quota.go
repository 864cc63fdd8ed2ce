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
// project, so its servers would be refused later. What Nova cannot say now, reconcile-managed finds out. A declaration
// of no more servers than before passes: it may be a repeated one, whose servers are being made.
func (s service) checkQuota(ctx context.Context, cloud session, before, made domain.Managed) error {
	var declared, stored domain.DeploymentSpec
	_ = json.Unmarshal(made.Spec, &declared) // it was checked
	field := "spec.count"
	switch made.Kind {
	case domain.KindMachine:
		declared.Count, stored.Count, field = 1, min(before.Revision, 1), "spec.flavor"
	case domain.KindDeployment:
		_ = json.Unmarshal(before.Spec, &stored) // none of a new resource
	default:
		return nil
	}
	if declared.Count <= stored.Count {
		return nil
	}
	more := declared.Count
	for _, m := range made.Members {
		if m.ObjectID != "" && m.Status != domain.MemberDeleting {
			more--
		}
	}
	if more <= 0 {
		return nil
	}
	quota, err := cloud.Quota(ctx)
	if err != nil {
		slog.WarnContext(ctx, "the quota is not checked", "project_id", made.ProjectID, "error", err)
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
