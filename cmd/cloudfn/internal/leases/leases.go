// Package leases holds the commands for leases: periods for which instances, volumes and hosts are reserved.
package leases

import (
	"cmp"
	"context"
	"math"
	"net/http"
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
		for _, warning := range domain.Deref(l.Warnings) {
			a.Notef("warning: %s", warning)
		}
	},
	Below: func(a *cli.App, l api.Item[api.Lease]) error {
		return output.Below(&a.Print, l.Value.Events, stepTable)
	},
	Table: output.Table[api.Lease]{
		Columns: []string{
			"ID", "NAME", "STATUS*", "START+", "END", "RESERVES+", "REASON+", "ON_END+", "DEGRADED+",
			"CREATED+:created_at",
		},
		Details: []string{
			"WARNS:before_end", "ISOLATION*", "SERVERS", "FLAVORS", "ORDER:order_id", "USER:user_id",
		},
		Texts: map[string]func(api.Lease) string{
			"END":      func(l api.Lease) string { return output.Time(endOf(l)) },
			"RESERVES": reserves, "REASON": reason, "FLAVORS": flavors, "SERVERS": changed,
			"DEGRADED": func(l api.Lease) string {
				if l.Degraded {
					return "yes"
				}
				return ""
			},
		},
	},
}

// stepTable is when each step of a lease is due, and how it went.
var stepTable = output.Table[api.LeaseEvent]{
	Columns: []string{"EVENT:type", "STATUS*", "DUE:due_at", "DONE:at", "RETRY:retry_at", "FAILED+:attempts"},
}

// reserves lists the reservations: hosts by their number, instances and volumes by their ids.
func reserves(l api.Lease) string {
	var all []string
	for _, r := range l.Reservations {
		text := "instance " + domain.Deref(r.InstanceID)
		switch r.Type {
		case api.ReservationTypeHost:
			text = output.Count(domain.Deref(r.Hosts), "host") + " (reservation " + r.ID + ")"
		case api.ReservationTypeVolume:
			text = volumeText(r)
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

// changed says what the end did to servers besides on_end.
func changed(l api.Lease) string {
	var all []string
	for _, r := range l.Reservations {
		for _, s := range domain.Deref(r.Servers) {
			all = append(all, s.Name+" ("+s.ServerID+"): "+s.Detail)
		}
	}
	return strings.Join(all, "; ")
}

// flavors lists the names that a launch with the reservation takes.
func flavors(l api.Lease) string {
	var all []string
	for _, r := range l.Reservations {
		for _, f := range domain.Deref(r.Flavors) {
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
	c := cli.Group("leases", "Reserve instances, volumes and hosts for a period",
		list(a), show(a), create(a), extend(a), update(a), end(a), retry, release(a),
		availability(a), allocations(a))
	c.Long = `Reserve instances, volumes and hosts for a period. LEASE is the id of a lease, or its name if no other
lease that has not ended has the name.`
	return c
}

func list(a *cli.App) *cobra.Command {
	cmd := leases.List(a, "List the project's leases", "listLeases", "status", "name", "type", "instance:instance_id")
	cmd.Example = "  cloudfn leases list --status pending,active --type host"
	cli.Statuses(cmd, domain.LeaseStatuses(), "")
	cmd.Flags().String("name", "", "only those whose name contains this")
	cmd.Flags().String("instance", "", "only those of this instance: a server, by its name or id")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return servers.InstanceFlag(cmd, a, "instance")
	}
	a.CompleteFlag(cmd, "instance", instances(a))
	cmd.Flags().String("type", "", "only those that reserve this: instance, host or volume")
	cli.Choices(cmd, "type", string(domain.InstanceReservation), string(domain.HostReservation),
		string(domain.VolumeReservation))
	cli.LimitFlag(cmd, 0)
	return cmd
}

// await reads a lease until it has one of the statuses. A lease in error is a failure.
func await(
	ctx context.Context, a *cli.App, wait cli.Wait, lease api.Item[api.Lease], statuses ...api.LeaseStatus,
) (api.Item[api.Lease], error) {
	id := lease.Value.ID
	isDone := func(l api.Item[api.Lease]) bool { return slices.Contains(statuses, l.Value.Status) }
	return cli.Waiter[api.Item[api.Lease]]{
		Get: func(ctx context.Context) (api.Item[api.Lease], error) { return leases.Get(ctx, a, id, nil) },
		Done: func(l api.Item[api.Lease]) (bool, error) {
			if !isDone(l) && l.Value.Status == api.LeaseStatusError {
				return false, exit.Failedf("lease %s failed: %s", id, reason(l.Value))
			}
			return isDone(l), nil
		},
		Rows: func(l api.Item[api.Lease]) []output.Row {
			name, state := cmp.Or(l.Value.Name, id), string(l.Value.Status)
			return []output.Row{{Name: name, State: state, Note: reason(l.Value), IsFinal: isDone(l)}}
		},
		Remaining: func(l api.Item[api.Lease]) string {
			return "it is " + string(l.Value.Status) + "; follow it by " + a.Name + " leases show " + id
		},
	}.Wait(ctx, a, wait, lease)
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

// checkEnd is the refusal to end a lease without a confirmation, when that deletes data. onEnd replaces the lease's.
func checkEnd(a *cli.App, l api.Lease, onEnd string) error {
	switch {
	case onEnd == string(domain.OnEndDelete), onEnd == string(domain.OnEndSnapshotDelete), onEnd == "" && deletes(l):
		return exit.Usagef("the end of lease %s deletes its servers (on_end is %s): add --confirm-delete if you mean "+
			"it, or change it first by %s leases update %s --on-end shelve",
			l.Name, cmp.Or(onEnd, string(l.OnEnd)), a.Name, l.ID)
	case onEnd != string(domain.OnEndNone) && deletesVolumes(l):
		return exit.Usagef("the end of lease %s deletes volumes (their on_end is delete): add --confirm-delete if you "+
			"mean it, or leave them attached by --on-end none", l.Name)
	}
	return nil
}

// ended are the statuses after which nothing follows.
var ended = []api.LeaseStatus{api.LeaseStatusEnded, api.LeaseStatusCancelled}

// follow says what a command waits for, after a request whose answer is a lease.
type follow struct {
	wait    cli.Wait
	isWatch bool
}

// watchFlag adds --watch.
func (f *follow) watchFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.isWatch, "watch", false, "print each step as it comes, until the lease has ended")
}

// flags add --wait, --timeout and --watch.
func (f *follow) flags(cmd *cobra.Command, what string) {
	f.wait.Flags(cmd, what)
	f.watchFlag(cmd)
	cmd.MarkFlagsMutuallyExclusive("wait", "watch")
}

// send sends a request whose answer is a lease, waits for one of the statuses if it is to, or for the end, and prints
// the lease. A version is that which the request changes.
func (f *follow) send(
	ctx context.Context, a *cli.App, method, path, version string, body any, statuses ...api.LeaseStatus,
) error {
	var lease api.Item[api.Lease]
	var err error
	if method == http.MethodPost {
		lease, err = cli.SendOnce[api.Lease](ctx, a, path, body)
	} else {
		lease, err = api.SendIfMatch[api.Lease](ctx, a.API(), method, path, version, body)
	}
	switch {
	case err != nil:
		return err
	case f.isWatch:
		lease, err = watch(ctx, a, lease)
	case f.wait.IsOn:
		a.Notef("Lease %s is %s.", lease.Value.ID, lease.Value.Status)
		lease, err = await(ctx, a, f.wait, lease, statuses...)
	}
	if err != nil {
		return err
	}
	return leases.Print(a, lease)
}

// watch prints the steps and statuses of a lease as they come, until it has ended. An error is no end: the lease may be
// retried, and at its end it still ends.
func watch(ctx context.Context, a *cli.App, lease api.Item[api.Lease]) (api.Item[api.Lease], error) {
	id := lease.Value.ID
	steps, status := map[api.LeaseEvent]bool{}, api.LeaseStatus("")
	show := func(l api.Lease) {
		for _, e := range l.Events {
			at := e.DueAt
			if e.At != nil {
				at = *e.At
			}
			if step := (api.LeaseEvent{Type: e.Type, Status: e.Status, DueAt: e.DueAt}); !steps[step] {
				steps[step] = true
				a.Notef("%s  %s %s", output.Time(at), e.Type, e.Status)
			}
		}
		if l.Status == status {
			return
		}
		status = l.Status
		if l.Reason != nil {
			a.Notef("Lease %s is %s: %s.", id, status, output.Clean(reason(l)))
			return
		}
		a.Notef("Lease %s is %s.", id, status)
	}
	show(lease.Value)
	return cli.Waiter[api.Item[api.Lease]]{
		Get: func(ctx context.Context) (api.Item[api.Lease], error) { return leases.Get(ctx, a, id, nil) },
		Done: func(l api.Item[api.Lease]) (bool, error) {
			show(l.Value)
			return slices.Contains(ended, l.Value.Status), nil
		},
		Remaining: func(api.Item[api.Lease]) string { return "it is " + string(status) },
	}.Wait(ctx, a, cli.Wait{IsOn: true, Limit: math.MaxInt64}, lease)
}

func show(a *cli.App) *cobra.Command {
	var f follow
	cmd := leases.One(a, "show", "Show a lease", "getLease", func(cmd *cobra.Command, id string) error {
		return f.send(cmd.Context(), a, http.MethodGet, leases.URL(id), api.Any, nil)
	})
	cmd.Example = "  cloudfn leases show LEASE --watch"
	f.watchFlag(cmd)
	return cmd
}

func end(a *cli.App) *cobra.Command {
	var f follow
	cmd := leases.One(a, "end", "End a lease now, or cancel it before its start", "deleteLease",
		func(cmd *cobra.Command, id string) error {
			isConfirmed, _ := cmd.Flags().GetBool("confirm-delete")
			found, err := leases.Get(cmd.Context(), a, id, nil)
			if err != nil {
				return err
			}
			onEnd, _ := cmd.Flags().GetString("on-end")
			if l := found.Value; slices.Contains(ended, l.Status) {
				a.Notef("Lease %s has been %s since %s.", output.Clean(l.Name), l.Status, output.Time(endOf(l)))
				return leases.Print(a, found)
			}
			if err := checkEnd(a, found.Value, onEnd); err != nil && !isConfirmed {
				return err
			}
			path := leases.URL(id)
			if query := cli.Query(cmd.Flags(), "on-end"); len(query) > 0 {
				path += "?" + query.Encode()
			}
			return f.send(cmd.Context(), a, http.MethodDelete, path, api.Any, nil, ended...)
		})
	cmd.Aliases = []string{"delete", "rm"}
	cmd.Annotations = cli.Calls("deleteLease", "getLease")
	cmd.Long = `End a lease now. What its on_end says happens to its servers, then its volumes are detached, and its
hosts are returned. --on-end replaces what happens to the servers: none leaves them as they are, with their volumes. Of
a lease that is ending already it replaces what is still to come, such as delete when a server cannot be shelved. A
lease that has not started is cancelled: its instances are as they were before it, so one that ran is started again.`
	cmd.Example = "  cloudfn leases end LEASE --wait\n  cloudfn leases end LEASE --on-end none"
	cmd.Flags().String("on-end", "", "instead of what its on_end says: "+
		strings.Join(append(domain.OnEnds(), string(domain.OnEndNone)), ", "))
	cli.Choices(cmd, "on-end", append(domain.OnEnds(), string(domain.OnEndNone))...)
	cmd.Flags().Bool("confirm-delete", false, "yes, servers and volumes whose on_end deletes them are to be deleted")
	f.flags(cmd, "it has ended")
	return cmd
}
