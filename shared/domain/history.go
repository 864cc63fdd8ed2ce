package domain

import "time"

// LoggedAction is one entry of a server's action log in Nova (os-instance-actions).
type LoggedAction struct {
	Name   string // "create", "stop", ...
	Start  time.Time
	Finish time.Time // Nova's updated_at of the entry; zero = unknown, or not finished
	Failed bool      // Nova's message is "Error"
}

// History is a server's past as Nova shows it.
type History struct {
	ServerID  string
	ProjectID string
	Created   time.Time
	Updated   time.Time // Nova's updated_at: no state changed after it
	Deleted   time.Time // zero while the server exists
	State     VMState   // the state now
	Actions   []LoggedAction
}
