package postgres

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// kind is something that a project has: a table with the columns project_id and id. Conditions are on its row r.
type kind struct {
	table string
	// open holds for what still has effects: a project that is not served any more has it left. "" = for none.
	open string
	// domain is the domain of the project; "" = the row does not know it.
	domain string
	// of is that it counts as the project $1's; "" = its project_id says so.
	of string
}

// kinds are all of them. A new table needs no more than its entry to be listed and suspended with a project that is not
// served any more, and to keep its ids from being taken.
var kinds = []kind{
	{table: "actions"},
	{table: "callbacks", open: "r.project_id <> '' and r.status <> 'gone'", of: callbackOf},
	{table: "connections", open: "r.status = 'active'", domain: "r.domain_id"},
	{table: "instances", open: "r.state <> 'deleted' and r.disconnected_at is null"},
	{table: "leases", open: "r.status not in ('ended', 'cancelled')", domain: "r.domain_id"},
	{table: "managed", open: "true", domain: managedDomain},
	{table: "orders", open: "r.status = 'running'", domain: "r.domain_id"},
}

const (
	// A callback that gets the project's events through a connection counts: its receiver must not take its events for
	// those of an instance.
	callbackOf = "(r.project_id = $1 or coalesce(r.of_project, r.project_id) = $1)"

	managedDomain = "(select p.domain_id from managed_projects p where p.project_id = r.project_id)"
)

// union joins the statements of kinds; "" is left out.
func union(statement func(kind) string) string {
	var parts []string
	for _, k := range kinds {
		if sql := statement(k); sql != "" {
			parts = append(parts, sql)
		}
	}
	return strings.Join(parts, "\nunion all ")
}

// takenSQL finds ids among those of all that events are about: an event is identified by its subject and a number, so
// no two things of a project may have the same id. A deleted thing has its id for as long as its events are stored.
var takenSQL = union(func(k kind) string {
	return "select r.id from " + k.table + " r where " + cmp.Or(k.of, "r.project_id = $1") + " and r.id = any($2)"
}) + `
union all select id from unnest($2::uuid[]) as id
where exists (select from events where project_id = $1 and subject = id::text)`

// remainsSQL: the request log knows the domain of each project that has made a request.
var remainsSQL = `
with parts as (` + union(func(k kind) string {
	if k.open == "" {
		return ""
	}
	return "select r.project_id, max(" + cmp.Or(k.domain, "''") + ") as domain_id, '" + k.table + "' as kind, " +
		"count(*) as n from " + k.table + " r where " + k.open + " group by r.project_id"
}) + `), counted as (
    select project_id, max(domain_id) as domain_id, jsonb_object_agg(kind, n) as counts from parts group by project_id
)
select c.project_id, coalesce(nullif(c.domain_id, ''), (
           select r.domain_id from requests r where r.project_id = c.project_id order by r.id desc limit 1
       ), '') as domain_id, u.since, c.counts
from counted c left join unserved_projects u on u.project_id = c.project_id order by c.project_id`

// OpenKinds lists the kinds of what a project may have left.
func OpenKinds() (names []string) {
	for _, k := range kinds {
		if k.open != "" {
			names = append(names, k.table)
		}
	}
	return names
}

// listOpenSQL lists the ids of what a project has left of a kind.
func listOpenSQL(table string) string {
	k := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.table == table })]
	return "select r.id from " + table + " r where r.project_id = $1 and " + k.open
}

// MayTakeIDs returns a function's rights with those of the check that an id is not taken.
func MayTakeIDs(rights map[string]string) map[string]string {
	all := maps.Clone(rights)
	for _, k := range kinds {
		all[k.table] += " select (project_id, id)"
	}
	all["callbacks"] += " select (of_project)"
	return all
}

// MayListRemains returns a function's rights with those of Unserved.ListRemains, where it names no right of a kind.
func MayListRemains(rights map[string]string) map[string]string {
	all := maps.Clone(rights)
	for _, k := range kinds {
		all[k.table] = cmp.Or(all[k.table], "select")
	}
	return all
}
