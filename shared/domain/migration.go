package domain

import "slices"

// Migration is Nova's record of a server that moves to another host.
type Migration struct {
	Status   string // Nova's, raw
	Target   string
	IsResize bool // its owner has asked for it
}

// IsOver reports whether Nova works on the migration no more.
func (m Migration) IsOver() bool {
	return slices.Contains([]string{
		"completed", "confirmed", "reverted", "error", "failed", "cancelled", "done", "finished",
	}, m.Status)
}

// HasFailed reports whether the server stayed where it was.
func (m Migration) HasFailed() bool {
	return slices.Contains([]string{"error", "failed", "cancelled"}, m.Status)
}
