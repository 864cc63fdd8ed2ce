// Package clock is woken every minute. It reads from Postgres which functions have something due, and wakes these: a
// function that has nothing to do has no pod.
package clock

import (
	"errors"

	"github.com/cloudfn/cloudfn/shared/eventx"
	"github.com/cloudfn/cloudfn/shared/postgres"
	"github.com/cloudfn/cloudfn/shared/run"
)

// Function declares clock. It reads when something is due: the columns of time and claim, and those that tell which
// rows may be due (the conditions of the indexes, and of joins). It writes what it could not wake, and nothing else.
var Function = run.Event[struct{}]{
	Name:     "clock",
	Summary:  "Wakes the functions that have something due.",
	Schedule: run.Minutely,
	Reach: run.Reach{
		Tables: map[string]string{
			"actions":             "select (project_id, connection_id, status, claimed_until)",
			"callbacks":           "select (project_id, id, status, not_before, claimed_until, created_at)",
			"connection_requests": "select (status, expires_at)",
			"connections": "select (project_id, id, kind, status, revoked, suspended_at, created_at, last_used_at, " +
				"idle_timeout, expires_at, not_before, next_check_at, check_until)",
			"drains": "select (due_at, claimed_until)",
			"events": "insert", // of a monitor
			"instances": "select (project_id, connection_id, server_id, state, remote, disconnected_at, " +
				"floating_ip_release_at)",
			"jobs":              "select (kind, key, due_at, claimed_until, done_at)",
			"leases":            "select (project_id, status, ends_at, due_at, claimed_until)",
			"managed_projects":  "select (project_id, due_at, claimed_until)",
			"monitors":          "select, insert, update",
			"nodes":             "select (pool)",
			"orders":            "select (project_id, connection_id, status, claimed_until)",
			"streams":           "select (project_id, callback_id, head, tail, next_at, claimed_until)",
			"trusts_to_revoke":  "select (project_id, connection_id, trust_id, failures, not_before)",
			"unserved_projects": "select (project_id)",
			"wake_failures":     "select, insert, update, delete",
		},
		Network: []string{"functions"},
	},
	Secrets: []string{"events"},
	// One pod reads and wakes. A tick that is doubled, or meets its predecessor, wakes no function twice.
	Scale: run.Scale{MaxPods: 1, Concurrency: 10},
	Build: build,
}

func build(_ struct{}, d run.Deps) (eventx.Func, error) {
	if d.Post == nil {
		return nil, errors.New("WAKE_URL is empty: set it to where event functions are woken, such as " +
			"http://{function}.cloudfn.svc.cluster.local")
	}
	return newService(postgres.NewClock(d.DB, d.Due), postgres.Monitors{DB: d.DB}, d.Post).Handle, nil
}
