package leases

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var volumeFlag = cli.VolumeFlag{
	Name: "--volume", Fields: map[string]string{
		"size": "size_gb", "type": "volume_type", "name": "name", "id": "volume_id", "on-end": "on_end",
		"instance": "instance_id",
	},
	Example: "size=20,type=ssd,name=data,on-end=snapshot,instance=web",
}

// volumesOf reads the reservations of volumes, which follow first other ones.
func volumesOf(cmd *cobra.Command, first int) (all []map[string]any, err error) {
	volumes, _ := cmd.Flags().GetStringArray("volume")
	if instances, _ := cmd.Flags().GetStringSlice("instance"); len(volumes) > 0 && len(instances) == 0 {
		return nil, exit.Usagef("--volume: give the server that gets it by --instance, too")
	}
	for n, text := range volumes {
		volume, _, err := volumeFlag.Parse(text)
		if err != nil {
			return nil, err
		}
		volume["type"] = domain.VolumeReservation
		cli.SetBy(cmd.Flags(), "", fmt.Sprintf("volume:reservations[%d]", first+n))
		all = append(all, volume)
	}
	return all, nil
}

var volumeEndFlag = cli.VolumeFlag{
	Name: "--volume", Fields: map[string]string{"id": "volume_id", "name": "name", "on-end": "on_end"},
	Example: "name=data,on-end=keep",
}

// otherEnds reads what is to happen to volumes of the lease at its end, as a change has it.
func otherEnds(lease api.Lease, volumes []string) (changes []map[string]any, err error) {
	for _, text := range volumes {
		wanted, _, err := volumeEndFlag.Parse(text)
		if err != nil {
			return nil, err
		}
		if wanted["on_end"] == nil {
			return nil, exit.Usagef("--volume: %q lacks on-end: keep, snapshot or delete", text)
		}
		isFound := false
		for _, r := range lease.Reservations {
			isMeant := func(field string, value *string) bool {
				return wanted[field] == nil || wanted[field] == domain.Deref(value)
			}
			isOpen := string(r.Status) != string(domain.ReservationEnded)
			if string(r.Type) != string(domain.VolumeReservation) || !isOpen ||
				!isMeant("volume_id", r.VolumeID) || !isMeant("name", r.Name) {
				continue
			}
			isFound = true
			changes = append(changes, map[string]any{"id": r.ID, "on_end": wanted["on_end"]})
		}
		if !isFound {
			return nil, exit.Usagef("--volume: the lease has no volume %q", text)
		}
	}
	return changes, nil
}

// volumeText says which volume a reservation is of, and what becomes of it if it is not only kept.
func volumeText(r api.Reservation) string {
	text := fmt.Sprintf("volume of %d GB", domain.Deref(r.SizeGb))
	if id := domain.Deref(r.VolumeID); id != "" {
		text = "volume " + id
	}
	onEnd, snapshot := domain.VolumeEnd(domain.Deref(r.OnEnd)), domain.Deref(r.SnapshotID)
	switch {
	case snapshot != "":
		return text + " (snapshot " + snapshot + ")"
	case onEnd != "" && onEnd != domain.VolumeEndKeep:
		return text + " (on_end " + string(onEnd) + ")"
	}
	return text
}

// deletesVolumes reports whether the end of a lease deletes volumes that may hold data.
func deletesVolumes(l api.Lease) bool {
	if l.Status == api.LeaseStatusPending || l.Status == api.LeaseStatusEnding {
		return false
	}
	for _, r := range l.Reservations {
		if domain.VolumeEnd(domain.Deref(r.OnEnd)) == domain.VolumeEndDelete {
			return true
		}
	}
	return false
}
