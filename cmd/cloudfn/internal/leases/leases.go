// Package leases holds the commands for leases: periods for which instances and hosts are reserved.
package leases

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
	"github.com/cloudfn/cloudfn/shared/domain"
)

var leases = cli.Noun[api.Lease]{
	Path: "/v1/leases", Key: "leases", Arg: "LEASE",
	Offer: func(l api.Lease) string { return l.ID + "\t" + l.Name + ", " + string(l.Status) },
	Note: func(a *cli.App, l api.Lease) {
		for _, warning := range cli.Value(l.Warnings) {
			a.Notef("warning: %s", warning)
		}
	},
	Table: output.Table[api.Lease]{
		Columns: []string{
			"ID", "NAME", "STATUS*", "START", "END", "RESERVES", "ON_END+", "DEGRADED+", "CREATED+:created_at",
		},
		Details: []string{
			"REASON", "WARNS:before_end", "ISOLATION*", "EVENTS", "FLAVORS", "ORDER:order_id", "USER:user_id",
		},
		Texts: map[string]func(api.Lease) string{
			"RESERVES": reserves, "REASON": reason, "EVENTS": steps, "FLAVORS": flavors,
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
	retry.Long = `Retry what has failed of a lease in error: its start, or its end. What it does to instances is
delegated again, by you.`
	return cli.Group("leases", "Reserve instances and hosts for a period",
		list(a), leases.Show(a, "Show a lease", "getLease"), create(a), extend(a), update(a), end(a), retry,
		availability(a), allocations(a))
}

func list(a *cli.App) *cobra.Command {
	cmd := leases.List(a, "List the project's leases", "listLeases", "status", "name", "type", "instance:instance_id")
	cmd.Example = "  cloudfn leases list --status pending,active --type host"
	cli.Statuses(cmd, domain.LeaseStatuses(), "")
	cmd.Flags().String("name", "", "only those whose name contains this")
	cli.Choices(cmd, "name")
	cmd.Flags().String("instance", "", "only those of this instance, by its id here")
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
	err := cli.Poll(ctx, limit, func(ctx context.Context) (bool, error) {
		found, err := leases.Get(ctx, a, id, nil)
		if err != nil {
			return false, err
		}
		lease = found
		if slices.Contains(statuses, lease.Value.Status) {
			return true, nil
		}
		if lease.Value.Status == api.LeaseStatusError {
			return false, exit.Failedf("lease %s failed: %s", id, reason(lease.Value))
		}
		return false, nil
	}, func() string {
		return "it is " + string(lease.Value.Status) + "; follow it by " + a.Name + " leases show " + id
	})
	return lease, err
}

// send sends a request whose answer is a lease, waits for one of the statuses if it is to, and prints the lease.
func send(
	ctx context.Context, a *cli.App, method, path string, body any, wait cli.Wait, statuses ...api.LeaseStatus,
) error {
	lease, err := api.Send[api.Lease](ctx, a.API(), method, path, body)
	if err != nil {
		return err
	}
	if wait.IsOn {
		a.Notef("Lease %s is %s.", lease.Value.ID, lease.Value.Status)
		if lease, err = await(ctx, a, wait.Limit, lease, statuses...); err != nil {
			return err
		}
	}
	return leases.Print(a, lease)
}

func end(a *cli.App) *cobra.Command {
	var wait cli.Wait
	cmd := leases.One(a, "end", "End a lease now, or cancel it before its start", "deleteLease",
		func(cmd *cobra.Command, id string) error {
			isConfirmed, _ := cmd.Flags().GetBool("confirm-delete")
			found, err := leases.Get(cmd.Context(), a, id, nil)
			if err != nil {
				return err
			}
			onEnd, _ := cmd.Flags().GetString("on-end")
			if l := found.Value; onEnd == "" && deletes(l) && !isConfirmed {
				return exit.Usagef("the end of lease %s deletes its servers (on_end is %s): add --confirm-delete if "+
					"you mean it, or change it first by %s leases update %s --on-end shelve",
					l.Name, l.OnEnd, a.Name, l.ID)
			}
			path := leases.URL(id)
			if query := cli.Query(cmd.Flags(), "on-end"); len(query) > 0 {
				path += "?" + query.Encode()
			}
			return send(cmd.Context(), a, http.MethodDelete, path, nil, wait,
				api.LeaseStatusEnded, api.LeaseStatusCancelled)
		})
	cmd.Annotations = cli.Calls("deleteLease", "getLease")
	cmd.Long = `End a lease now. What its on_end says happens to its servers, and its hosts are returned. With --on-end
none its instances are left as they are. A lease that has not started is cancelled: its instances are as they were
before it, so one that ran is started again.`
	cmd.Example = "  cloudfn leases end LEASE --wait\n  cloudfn leases end LEASE --on-end none"
	cmd.Flags().String("on-end", "", "instead of what its on_end says: none leaves its instances as they are")
	cli.Choices(cmd, "on-end", string(domain.OnEndNone))
	cmd.Flags().Bool("confirm-delete", false, "yes, the servers of a lease whose on_end deletes them are to be deleted")
	wait.Flags(cmd, "it has ended")
	return cmd
}

// deletes reports whether the end of a lease deletes servers. Before its start no end does.
func deletes(l api.Lease) bool {
	return l.Status != api.LeaseStatusPending &&
		(l.OnEnd == api.LeaseOnEnd(domain.OnEndDelete) || l.OnEnd == api.LeaseOnEnd(domain.OnEndSnapshotDelete))
}
