package postgres

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// ReadConnections is the right to read connections without what is sealed in them.
const ReadConnections = `select (id, project_id, domain_id, user_id, name, kind, auth_url, region, delegation_id,
  acts_as, ` +
	"actions, quota, limits, usable_by, usable_names, flavors, status, reason, revoked, trust_expires_at, " +
	"revocation_pending_since, expires_at, idle_timeout, last_used_at, seq, created_at, updated_at, checked_at, " +
	"next_check_at, check_until, check_failed_at, check_error, generation, credential_expires_at, suspended_at, " +
	"resumed_at, lease_id, managed)"

// ReadCallbacks is the right to read callbacks without their secrets.
const ReadCallbacks = "select (id, project_id, of_project, user_id, url, events, instance_id, order_id, " +
	"connection_id, status, reason, seq, previous_until, allowed_rate, created_at, updated_at)"

// ReadCallbackIDs is the right to know which ids callbacks have, and what they are about.
const ReadCallbackIDs = "select (id, project_id, of_project, instance_id, order_id)"

// ConnectInstances are the columns of instances that connecting a server writes.
const ConnectInstances = "connection_id, disconnected_at, reusable, server_id, name, state, raw_status, problem, " +
	"addresses, key_name, key_fingerprint, missed_at, seen_at, nova_at, seq, updated_at"

// privilege finds one in a list of rights, with its columns.
var privilege = regexp.MustCompile(`\b(select|insert|update|delete|execute)\b(?: ?\(([^)]*)\))?`)

// Grants is the SQL that gives a role the rights of several lists, each by table or by "function name(type)".
func Grants(role string, lists ...map[string]string) string {
	rights := map[string]map[string][]string{} // columns by table and privilege; none is all of them
	for _, list := range lists {
		for table, text := range list {
			if rights[table] == nil {
				rights[table] = map[string][]string{}
			}
			for _, found := range privilege.FindAllStringSubmatch(text, -1) {
				merge(rights[table], found[1], found[2])
			}
		}
	}
	var sql strings.Builder
	for _, table := range slices.Sorted(maps.Keys(rights)) {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(rights[table])) {
			if columns := rights[table][name]; len(columns) > 0 {
				name += " (" + strings.Join(columns, ", ") + ")"
			}
			parts = append(parts, name)
		}
		fmt.Fprintf(&sql, "grant %s on %s to %s;\n", strings.Join(parts, ", "), table, role)
	}
	return sql.String()
}

func merge(privileges map[string][]string, name, list string) {
	known, had := privileges[name]
	if list == "" || had && len(known) == 0 {
		privileges[name] = nil
		return
	}
	for column := range strings.SplitSeq(list, ",") {
		known = append(known, strings.TrimSpace(column))
	}
	slices.Sort(known)
	privileges[name] = slices.Compact(known)
}
