package managed

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
)

// checkMove rejects another region: the objects of a resource stay where they were made. To name the region of this
// process is no change.
func checkMove(ctx context.Context, cloud session, before domain.Managed, next domain.ScheduleRule) error {
	from, to := before.Schedule.Region, next.Region
	if before.ID == uuid.Nil || from == to {
		return nil
	}
	_, own, err := cloud.Regions(ctx)
	if err != nil || cmp.Or(from, own) == cmp.Or(to, own) {
		return err
	}
	return apperr.InvalidField("schedule.region", fmt.Sprintf(
		"must stay %q, because a resource cannot move to another region: declare another one there, and delete "+
			"this one",
		cmp.Or(from, own)))
}

// checkSchedule rejects what has no meaning for a kind.
func checkSchedule(kind domain.Kind, rule domain.ScheduleRule) error {
	isServer := kind == domain.KindMachine || kind == domain.KindDeployment
	var faults []apperr.Field
	fault := func(name, detail string) {
		faults = append(faults, apperr.Field{Field: "schedule." + name, Detail: detail})
	}
	if rule.Zone != "" && !isServer && kind != domain.KindVolume {
		fault("zone", "cannot be combined with this kind: only servers and volumes are in a zone")
	}
	if len(rule.Labels) > 0 && !isServer {
		fault("labels", "cannot be combined with this kind: only servers run on nodes")
	}
	if rule.Affinity != "" && kind != domain.KindDeployment {
		fault("affinity", "cannot be combined with this kind: only a VirtualMachineDeployment has several servers")
	}
	if len(faults) == 0 {
		return nil
	}
	return httpx.Invalid(faults...)
}

// checkTransition rejects a change of a volume that would lose its data.
func checkTransition(before domain.Managed, spec json.RawMessage, rule domain.ScheduleRule) error {
	if before.Kind != domain.KindVolume {
		return nil
	}
	var old, next domain.VolumeSpec
	_, _ = json.Unmarshal(before.Spec, &old), json.Unmarshal(spec, &next) // both were checked
	var faults []apperr.Field
	if next.SizeGB < old.SizeGB {
		faults = append(faults, apperr.Field{
			Field: "spec.size_gb", Detail: fmt.Sprintf("must be %d or more: a volume cannot shrink", old.SizeGB),
		})
	}
	lost := func(field string) {
		faults = append(faults, apperr.Field{
			Field: field, Detail: "cannot change, because the data would be lost: declare another volume",
		})
	}
	if next.Image != old.Image {
		lost("spec.image")
	}
	if zone := next.ZoneIn(rule); zone != old.ZoneIn(before.Schedule) {
		field := "spec.zone"
		if next.Zone == old.Zone {
			field = "schedule.zone"
		}
		lost(field)
	}
	if len(faults) == 0 {
		return nil
	}
	return httpx.Invalid(faults...)
}
