// Package nodes watches the hosts of compute and drains them: what is read of hosts, when one is cordoned or drained by
// itself, and how each server of a drain is moved. Each step may be repeated, so that a process that dies between any
// two calls loses nothing.
package nodes

import "github.com/cloudfn/cloudfn/shared/domain"

// What Plan answers besides domain.LiveMigration and domain.ColdMigration.
const (
	Wait = "wait" // Nova is at work on the server, and takes no other action
	Skip = "skip" // the server stays
)

// Plan says how a drain moves a server of a host: domain.LiveMigration, domain.ColdMigration, Wait or Skip. The last
// two come with a reason. A locked server moves too: Nova lets its admins migrate it.
func Plan(s domain.Server) (method, reason string) {
	switch {
	case s.Partial:
		return Wait, "its cell is down"
	case s.Task != "":
		return Wait, "Nova is at work on it: " + s.Task
	}
	switch s.Status {
	case "ACTIVE", "PAUSED":
		return domain.LiveMigration, ""
	case "SHUTOFF":
		return domain.ColdMigration, ""
	case "BUILD", "MIGRATING", "RESIZE", "REVERT_RESIZE", "REBUILD", "REBOOT", "HARD_REBOOT", "PASSWORD":
		return Wait, "Nova is at work on it: " + s.Status
	}
	return Skip, stays(s)
}

// stays says why a server cannot be moved, and what would help.
func stays(s domain.Server) string {
	switch s.Status {
	case "ERROR":
		return "it is in ERROR: Nova does not move it until its state is reset or it is deleted"
	case "VERIFY_RESIZE":
		return "its resize waits for its owner to confirm or revert it"
	case "SUSPENDED":
		return "it is SUSPENDED: Nova moves it only after it is resumed"
	case "RESCUE":
		return "it is in RESCUE: Nova moves it only after it is unrescued"
	case "SHELVED":
		return "it is SHELVED and not offloaded: an admin may offload it"
	case "SHELVED_OFFLOADED":
		return "it is SHELVED_OFFLOADED: it is on no host"
	case "DELETED", "SOFT_DELETED":
		return "it is deleted"
	}
	return "Nova does not move a server in " + s.Status
}
