package leases

import (
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/cli"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/exit"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// termFields are the fields of a lease that flags set. Durations are not among them: see addPeriods.
var termFields = []string{"name", "start", "end", "on-end", "enforce"}

// termFlags add when a lease begins, how long it lasts, and what happens at its end.
func termFlags(a *cli.App, cmd *cobra.Command) {
	a.UntilOrNow(cmd, "start",
		"when it begins: 24h from now, a time such as 2027-01-01T09:00:00Z, or now, as new leases do")
	flags := cmd.Flags()
	flags.String("heal", "", "when a host fails: auto (another takes its place) or manual (wait for it)")
	cli.Choices(cmd, "heal", string(domain.HealAuto), string(domain.HealManual))
	flags.String("duration", "", "or how long it lasts: "+periodForms)
	cli.Choices(cmd, "duration", "8h", "2d", "1w", "P1M")
	WarningFlag(cmd, "the end")
	flags.String("on-end", "", "what happens to the servers at the end: "+strings.Join(domain.OnEnds(), ", "))
	cli.Choices(cmd, "on-end", domain.OnEnds()...)
	flags.Bool("enforce", false, "shelve an instance again that its owner starts before the lease begins")
}

// addPeriods adds the durations that were given to a request, as ISO 8601 has them.
func addPeriods(cmd *cobra.Command, body map[string]any) error {
	if err := AddPeriod(cmd, body, "duration", "duration"); err != nil {
		return err
	}
	return AddWarning(cmd, body)
}

// warningFlag is for when a lease warns of its end.
const warningFlag = "before-end"

// WarningFlag adds the flag of AddWarning.
func WarningFlag(cmd *cobra.Command, what string) {
	cmd.Flags().String(warningFlag, "", "warn so long before "+what+", by an event: 30m, 1h, 1d, or none (default 1h)")
	cli.Choices(cmd, warningFlag, "30m", "1h", "1d", "none")
}

// AddWarning adds when a lease warns of its end, if that was given. Without it the API takes its default.
func AddWarning(cmd *cobra.Command, body map[string]any) error {
	const noWarning = "PT0S"
	if text, _ := cmd.Flags().GetString(warningFlag); text == "none" || text == noWarning {
		body["before_end"] = noWarning
		return nil
	}
	return AddPeriod(cmd, body, warningFlag, "before_end")
}

// AddPeriod adds the duration of a flag that was given to a request, as ISO 8601 has it.
func AddPeriod(cmd *cobra.Command, body map[string]any, flag, field string) error {
	if !cmd.Flags().Changed(flag) {
		return nil
	}
	text, _ := cmd.Flags().GetString(flag)
	period, err := ParsePeriod(text)
	if err != nil {
		return exit.Usagef("--%s: %w", flag, err)
	}
	body[field] = period.String()
	return nil
}

// periodForms are examples of what ParsePeriod takes.
const periodForms = "90m, 8h, 1d12h, 2w, or an ISO 8601 duration such as P1M (a month)"

// ParsePeriod is that of cli, with an error for its flag.
func ParsePeriod(text string) (domain.Period, error) {
	period, err := cli.ParsePeriod(text)
	if err != nil {
		return period, exit.Usagef("must be a number with m, h, d or w, such as %s", periodForms)
	}
	return period, nil
}

func extend(a *cli.App) *cobra.Command {
	var f follow
	cmd := leases.One(a, "extend", "Move the end of a lease", "changeLease", func(cmd *cobra.Command, id string) error {
		body, version := cli.Body(cmd.Flags(), "end"), api.Any
		by, _ := cmd.Flags().GetString("by")
		if (by == "") == (len(body) == 0) {
			return exit.Usagef("give the new end by --end, or by --by how much later it is")
		}
		if by != "" {
			period, err := ParsePeriod(by)
			if err != nil {
				return exit.Usagef("--by: %w", err)
			}
			found, err := leases.Get(cmd.Context(), a, id, nil)
			if err != nil {
				return err
			}
			body["end"], version = period.AddTo(found.Value.End), found.ETag
		}
		return f.send(cmd.Context(), a, http.MethodPatch, leases.URL(id), version, body)
	})
	f.watchFlag(cmd)
	cmd.Annotations = cli.Calls("changeLease", "getLease")
	cmd.Long = `Move the end of a lease. With --by it fails if somebody else changes the lease meanwhile. --end may also
be earlier than the present end. When too few hosts are free
for longer, the lease stays as it is, and the error says from when they are.`
	cmd.Example = "  cloudfn leases extend LEASE --by 2h\n  cloudfn leases extend LEASE --end 2027-01-01T18:00:00Z"
	a.UntilOrNow(cmd, "end", "the new end: 24h or 7d from now, now, or a time such as 2027-01-01T18:00:00Z")
	cmd.Flags().String("by", "", "how much later than its present end: "+periodForms)
	cli.Choices(cmd, "by", "1h", "8h", "1d", "P1M")
	return cmd
}

func update(a *cli.App) *cobra.Command {
	cmd := leases.One(a, "update", "Change a lease", "changeLease", func(cmd *cobra.Command, id string) error {
		body := cli.Body(cmd.Flags(), append(termFields, "heal")...)
		if err := addPeriods(cmd, body); err != nil {
			return err
		}
		if len(body) == 0 {
			return exit.Usagef("nothing is to be changed: %s leases update -h lists flags", a.Name)
		}
		return leases.Send(cmd.Context(), a, http.MethodPatch, leases.URL(id), body)
	})
	cmd.Long = `Change a lease. Without a flag a field stays as it is. Before its start all can be changed; afterwards
the end, the warning, what happens at the end or when a host fails, and the name.`
	cmd.Example = "  cloudfn leases update LEASE --on-end delete --before-end none"
	termFlags(a, cmd)
	a.UntilOrNow(cmd, "end", "when it ends: 24h or 7d from now, now, or a time such as 2027-01-01T18:00:00Z")
	cmd.Flags().String("name", "", "a name, for people")
	cli.Choices(cmd, "name")
	return cmd
}
