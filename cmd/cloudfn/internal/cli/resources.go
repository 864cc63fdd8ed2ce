package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/api"
	"github.com/cloudfn/cloudfn/cmd/cloudfn/internal/output"
)

var resourceKinds = []string{"flavors", "images", "networks", "keypairs", "security_groups", "zones", "quota"}

func (a *app) resourcesCommand() *cobra.Command {
	var connection string
	cmd := &cobra.Command{
		Use:   "resources [KIND...]",
		Short: "List what there is to launch servers with",
		Long: "List what there is to launch servers with: " + strings.Join(resourceKinds, ", ") +
			". Without a kind, those that every launch needs.",
		Example:     "  cloudfn resources\n  cloudfn resources quota zones\n  cloudfn resources flavors -o name\n  cloudfn resources --connection 019b7c5e-1f20-7a31-b5d4-0c7e2f9a6b13",
		Annotations: calls("listResources"),
		Args:        cobra.OnlyValidArgs, ValidArgs: resourceKinds,
		RunE: func(cmd *cobra.Command, kinds []string) error {
			client, err := a.api(cmd.Context())
			if err != nil {
				return err
			}
			if len(kinds) == 0 {
				kinds = resourceKinds[:3]
			}
			query := url.Values{"kinds": {strings.Join(kinds, ",")}}
			if connection != "" {
				query.Set("connection_id", connection)
			}
			found, err := api.One[map[string]json.RawMessage](cmd.Context(), client, "/v1/resources", query)
			if err != nil {
				return err
			}
			a.noteAge(found.Value)
			return a.resources(kinds, found)
		},
	}
	cmd.Flags().StringVar(&connection, "connection", "", "what can be ordered through this connection: flavors, images, networks, quota")
	_ = cmd.RegisterFlagCompletionFunc("connection", a.complete(a.usableConnections))
	return cmd
}

// noteAge says how old the answer for a connection is, and of what it has a part only.
func (a *app) noteAge(found map[string]json.RawMessage) {
	var asOf time.Time
	var age int
	var truncated []string
	if json.Unmarshal(found["as_of"], &asOf) != nil || json.Unmarshal(found["age_seconds"], &age) != nil {
		return // it is not one
	}
	fmt.Fprintf(a.err, "Read through the connection %s ago, at %s.\n", time.Duration(age)*time.Second, stamp(asOf))
	if json.Unmarshal(found["truncated"], &truncated) == nil {
		fmt.Fprintf(a.err, "There is more than is listed of: %s.\n", strings.Join(truncated, ", "))
	}
}

func (a *app) resources(kinds []string, found api.Item[map[string]json.RawMessage]) error {
	if a.print.Format == "json" || a.print.Format == "yaml" {
		if err := output.One(&a.print, found, nil, nil); err != nil {
			return err
		}
		return partial(found.Value["errors"])
	}
	for i, kind := range kinds {
		if len(kinds) > 1 && a.print.Format != "name" {
			if i > 0 {
				fmt.Fprintln(a.out)
			}
			fmt.Fprintln(a.out, output.Bold(a.print.Color, strings.ReplaceAll(kind, "_", " ")))
		}
		if err := a.kind(kind, found.Value[kind]); err != nil {
			return err
		}
	}
	return partial(found.Value["errors"])
}

// partial says which kinds failed.
func partial(raw json.RawMessage) error {
	var errors map[string]api.PartProblem
	if raw == nil {
		return nil
	}
	if err := json.Unmarshal(raw, &errors); err != nil {
		return err
	}
	var texts []string
	for kind, problem := range errors {
		texts = append(texts, kind+": "+problem.Detail)
	}
	slices.Sort(texts)
	return failed{fmt.Errorf("not all could be listed: %s", strings.Join(texts, "; "))}
}

func (a *app) kind(kind string, raw json.RawMessage) error {
	if raw == nil {
		return nil // it failed
	}
	switch kind {
	case "flavors":
		return table(a, raw, flavorColumns)
	case "images":
		return table(a, raw, imageColumns)
	case "networks":
		return table(a, raw, networkColumns)
	case "keypairs":
		return table(a, raw, keyColumns)
	case "security_groups":
		return table(a, raw, groupColumns)
	case "zones":
		return table(a, raw, zoneColumns)
	}
	var q api.Quota
	if err := json.Unmarshal(raw, &q); err != nil {
		return err
	}
	rows := []api.Item[quota]{{Value: quota{"instances", q.Instances}}, {Value: quota{"vcpus", q.Vcpus}}, {Value: quota{"ram_mb", q.RAMMb}}}
	return output.List(&a.print, rows, func(q quota) string { return q.name }, quotaColumns)
}

// table prints a list of one kind; the second column is its name, or the first one when there is but that.
func table[T any](a *app, raw json.RawMessage, columns []output.Column[T]) error {
	var all []json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	items := make([]api.Item[T], len(all))
	for i, one := range all {
		items[i].Raw = one
		if err := json.Unmarshal(one, &items[i].Value); err != nil {
			return err
		}
	}
	name := columns[slices.IndexFunc(columns, func(c output.Column[T]) bool { return c.Title == "NAME" })]
	return output.List(&a.print, items, name.Text, columns)
}

var flavorColumns = []output.Column[api.Flavor]{
	{Title: "NAME", Text: func(f api.Flavor) string { return f.Name }},
	{Title: "VCPUS", Text: func(f api.Flavor) string { return strconv.Itoa(f.Vcpus) }},
	{Title: "RAM_MB", Text: func(f api.Flavor) string { return strconv.Itoa(f.RAMMb) }},
	{Title: "DISK_GB", Text: func(f api.Flavor) string { return strconv.Itoa(f.DiskGb) }},
	{Title: "ID", Text: func(f api.Flavor) string { return f.ID }},
}

var imageColumns = []output.Column[api.Image]{
	{Title: "NAME", Text: func(i api.Image) string { return i.Name }},
	{Title: "STATUS", State: true, Text: func(i api.Image) string { return i.Status }},
	{Title: "MIN_DISK_GB", Wide: true, Text: func(i api.Image) string { return strconv.Itoa(i.MinDiskGb) }},
	{Title: "MIN_RAM_MB", Wide: true, Text: func(i api.Image) string { return strconv.Itoa(i.MinRAMMb) }},
	{Title: "VISIBILITY", Wide: true, Text: func(i api.Image) string { return string(i.Visibility) }},
	{Title: "FORMAT", Wide: true, Text: func(i api.Image) string { return i.DiskFormat }},
	{Title: "ID", Text: func(i api.Image) string { return i.ID }},
}

var networkColumns = []output.Column[api.Network]{
	{Title: "NAME", Text: func(n api.Network) string { return n.Name }},
	{Title: "STATUS", State: true, Text: func(n api.Network) string { return n.Status }},
	{Title: "SUBNETS", Text: func(n api.Network) string {
		var cidrs []string
		for _, s := range n.Subnets {
			cidrs = append(cidrs, s.Cidr)
		}
		return strings.Join(cidrs, ", ")
	}},
	{Title: "EXTERNAL", Wide: true, Text: func(n api.Network) string { return strconv.FormatBool(n.External) }},
	{Title: "ID", Text: func(n api.Network) string { return n.ID }},
}

var keyColumns = []output.Column[api.KeyPair]{
	{Title: "NAME", Text: func(k api.KeyPair) string { return k.Name }},
	{Title: "FINGERPRINT", Text: func(k api.KeyPair) string { return k.Fingerprint }},
}

var groupColumns = []output.Column[api.SecurityGroup]{
	{Title: "NAME", Text: func(g api.SecurityGroup) string { return g.Name }},
	{Title: "DESCRIPTION", Text: func(g api.SecurityGroup) string { return g.Description }},
	{Title: "ID", Text: func(g api.SecurityGroup) string { return g.ID }},
}

var zoneColumns = []output.Column[api.Zone]{
	{Title: "NAME", Text: func(z api.Zone) string { return z.Name }},
	{Title: "AVAILABLE", State: true, Text: func(z api.Zone) string {
		if z.Available {
			return "yes"
		}
		return "no"
	}},
}

// quota is one line of the quota.
type quota struct {
	name string
	api.QuotaItem
}

var quotaColumns = []output.Column[quota]{
	{Title: "NAME", Text: func(q quota) string { return q.name }},
	{Title: "USED", Text: func(q quota) string { return strconv.Itoa(q.Used) }},
	{Title: "MAX", Text: func(q quota) string { return cmp.Or(map[int]string{-1: "unlimited"}[q.Max], strconv.Itoa(q.Max)) }},
}
