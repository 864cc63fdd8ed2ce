// Package leases holds the commands for leases: periods for which instances and hosts are reserved.
package leases

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/servers"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var leases = cli.Noun[api.Lease]{
	Path: "/v1/leases", Key: "leases", Arg: "LEASE",
	Ref: func(l api.Lease) (id, name string, isOver bool) {
		return l.ID, l.Name, slices.Contains(ended, l.Status)
	},
	Offer: func(l api.Lease) string { return l.ID + "\t" + l.Name + ", " + string(l.Status) },
	Note: func(a *cli.App, l api.Lease) {
		for _, warning := range cli.Value(l.Warnings) {
			a.Notef("warning: %s", warning)
		}
	},
	Table: output.Table[api.Lease]{
		Columns: []string{
			"ID", "NAME", "STATUS*", "START", "END", "RESERVES", "REASON", "ON_END+", "DEGRADED+",
			"CREATED+:created_at",
		},
		Details: []string{
			"WARNS:before_end", "ISOLATION*", "EVENTS", "SERVERS", "FLAVORS", "ORDER:order_id", "USER:user_id",
		},
		Texts: map[string]func(api.Lease) string{
			"END":      func(l api.Lease) string { return output.Time(endOf(l)) },
			"RESERVES": reserves, "REASON": reason, "EVENTS": steps, "FLAVORS": flavors,
			"SERVERS": changed,
			"DEGRADED": func(l api.Lease) string {
				if l.Degraded {
					return "yes"
				}
				return ""
			},
		},
	},
}

// reserves lists the reservations: hosts by their number, instances by their ids.
func reserves(l api.Lease) string {
	var all []string
	for _, r := range l.Reservations {
		text := "instance " + cli.Value(r.InstanceID)
		if r.Type == api.ReservationTypeHost {
			text = output.Count(cli.Value(r.Hosts), "host") + " (reservation " + r.ID + ")"
		}
		if r.Reason != nil {
			text += ": " + reasonText(r.Reason)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func reason(l api.Lease) string { return reasonText(l.Reason) }

func reasonText(r *api.LeaseReason) string {
	if r == nil {
		return ""
	}
	return r.Code + ": " + r.Detail
}

// steps says of each step when it is due, and how it went.
func steps(l api.Lease) string {
	var all []string
	for _, e := range l.Events {
		at := e.DueAt
		if e.At != nil {
			at = *e.At
		}
		all = append(all, string(e.Type)+" "+string(e.Status)+" "+output.Time(at))
	}
	return strings.Join(all, ", ")
}

// changed says what the end did to servers besides on_end.
func changed(l api.Lease) string {
	var all []string
	for _, r := range l.Reservations {
		for _, s := range cli.Value(r.Servers) {
			all = append(all, s.Name+" ("+s.ServerID+"): "+s.Detail)
		}
	}
	return strings.Join(all, "; ")
}

// flavors lists the names that a launch with the reservation takes.
func flavors(l api.Lease) string {
	var all []string
	for _, r := range l.Reservations {
		for _, f := range cli.Value(r.Flavors) {
			all = append(all, f.Name)
		}
	}
	return strings.Join(all, ", ")
}

// Command holds the commands for leases.
func Command(a *cli.App) *cobra.Command {
	retry := leases.Act(a, "retry", "Retry what has failed of a lease", "retryLease")
	retry.Long = `Retry what has failed of a lease in error: its start, or its end. The end of a lease that is ending
is tried now. What it does to instances is delegated again, by you.`
	c := cli.Group("leases", "Reserve instances and hosts for a period",
		list(a), show(a), create(a), extend(a), update(a), end(a), retry, release(a),
		availability(a), allocations(a))
	c.Long = `Reserve instances and hosts for a period. LEASE is the id of a lease, or its name if no other lease that
has not ended has the name.`
	return c
}

func list(a *cli.App) *cobra.Command {
	cmd := leases.List(a, "List the project's leases", "listLeases", "status", "name", "type", "instance:instance_id")
	cmd.Example = "  cloudfn leases list --status pending,active --type host"
	cli.Statuses(cmd, domain.LeaseStatuses(), "")
	cmd.Flags().String("name", "", "only those whose name contains this")
	cli.Choices(cmd, "name")
	cmd.Flags().String("instance", "", "only those of this instance: a server, by its name or id")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return servers.InstanceFlag(cmd, a, "instance")
	}
	a.CompleteFlag(cmd, "instance", func(ctx context.Context, _ []string, _ string) ([]string, error) {
		return instances(ctx, a)
	})
	cmd.Flags().String("type", "", "only those that reserve this: instance or host")
	cli.Choices(cmd, "type", string(domain.InstanceReservation), string(domain.HostReservation))
	cli.LimitFlag(cmd, 0)
	return cmd
}

// await reads a lease until it has one of the statuses. A lease in error is a failure.
func await(
	ctx context.Context, a *cli.App, limit time.Duration, lease api.Item[api.Lease], statuses ...api.LeaseStatus,
) (api.Item[api.Lease], error) {
	id := lease.Value.ID
	show, stop := a.Progress(ctx)
	defer stop()
	err := cli.Poll(ctx, limit, func(ctx context.Context) (bool, error) {
		found, err := leases.Get(ctx, a, id, nil)
		if err != nil {
			return false, err
		}
		lease = found
		isDone := slices.Contains(statuses, lease.Value.Status)
		show(output.Row{
			Name: cmp.Or(lease.Value.Name, id), State: string(lease.Value.Status), Note: reason(lease.Value),
			IsFinal: isDone,
		})
		if !isDone && lease.Value.Status == api.LeaseStatusError {
			return false, exit.Failedf("lease %s failed: %s", id, reason(lease.Value))
		}
		return isDone, nil
	}, func() string {
		return "it is " + string(lease.Value.Status) + "; follow it by " + a.Name + " leases show " + id
	})
	return lease, err
}

// endOf is when a lease ends, or has ended.
func endOf(l api.Lease) time.Time {
	for _, e := range l.Events {
		if e.Type == api.LeaseEventTypeEnd && e.At != nil {
			return *e.At
		}
	}
	return l.End
}

// deletes reports whether the end of a lease deletes servers. Before its start no end does.
func deletes(l api.Lease) bool {
	return l.Status != api.LeaseStatusPending && l.Status != api.LeaseStatusEnding &&
		(l.OnEnd == api.LeaseOnEnd(domain.OnEndDelete) || l.OnEnd == api.LeaseOnEnd(domain.OnEndSnapshotDelete))
}
