package domain

import (
	"time"

	"github.com/google/uuid"
)

// The types of events that operators get: about compute hosts, cloudfn itself and the count of servers.
const (
	NodeEvent    = "cloudfn.node.state.v1"
	DrainEvent   = "cloudfn.node.drain.v1"
	MonitorEvent = "cloudfn.monitor.failed.v1"
	StatsEvent   = "cloudfn.stats.hour.v1"
)

const toOperators = "Only the broker gets it, and callbacks of the operators' project (`NODES_PROJECT_ID`)."

// NodeEventData is the status of a compute host.
type NodeEventData struct {
	Name           string     `json:"name" minLength:"1"`
	Status         NodeStatus `json:"status" enum:"unknown,up,suspect,down"`
	PreviousStatus NodeStatus `json:"previous_status" enum:"unknown,up,suspect,down"`
	Reason         string     `json:"reason" doc:"Why it is suspect or down; empty otherwise."`
	Since          time.Time  `json:"since" doc:"Of the status."`
	Schedulable    bool       `json:"schedulable"`
	Cordoned       bool       `json:"cordoned" doc:"Whether cloudfn has disabled it."`
	Zone           string     `json:"zone"`
	Servers        int        `json:"servers" minimum:"0" doc:"Their number."`
}

var nodeEvent = EventType{
	Type: NodeEvent, Data: NodeEventData{}, Operation: "nodeState", Subject: "the host's name",
	Summary: "A host of compute has another status, or was cordoned or uncordoned",
	Notes:   toOperators,
	Example: `{"name": "compute-3", "status": "suspect", "previous_status": "up",
		"reason": "its nova-compute has not reported since 2026-01-02T03:04:05Z",
		"since": "2026-01-02T03:05:25.000000Z", "schedulable": true, "cordoned": false, "zone": "nova",
		"servers": 12}`,
}

// DrainEventData is how far a drain is.
type DrainEventData struct {
	DrainID uuid.UUID   `json:"drain_id"`
	Node    string      `json:"node" minLength:"1"`
	Status  DrainStatus `json:"status" enum:"running,cancelled,done,failed"`
	Reason  string      `json:"reason"`
	Moved   int         `json:"moved" minimum:"0" doc:"Servers."`
	Left    int         `json:"left" minimum:"0" doc:"Servers."`
	Skipped int         `json:"skipped" minimum:"0" doc:"Servers."`
	Actor   *Actor      `json:"actor,omitempty" schema:"EventActor"`
}

var drainEvent = EventType{
	Type: DrainEvent, Data: DrainEventData{}, Operation: "nodeDrain", Subject: "the host's name",
	Summary: "A drain of a host has begun or ended",
	Notes:   toOperators,
	Example: `{"drain_id": "019b7c5e-7f60-7a88-b14f-6d0e5a4c3e55", "node": "compute-3", "status": "done",
		"reason": "", "moved": 11, "left": 0, "skipped": 1}`,
}

// MonitorEventData is whether something of cloudfn works.
type MonitorEventData struct {
	Monitor  string `json:"monitor" enum:"nodes,zone,wake,clock"`
	Function string `json:"function,omitempty" doc:"Of the monitor wake. It could not be woken for three minutes."`
	Zone     string `json:"zone,omitempty" doc:"Of the monitor zone. Its hosts are not cordoned automatically."`
	Status   string `json:"status" enum:"failed,works"`
	Reason   string `json:"reason"`
}

var monitorEvent = EventType{
	Type: MonitorEvent, Data: MonitorEventData{}, Operation: "monitorFailed",
	Subject: "`monitor/nodes`, or `monitor/zone/` and the name of the zone",
	Summary: "The list of hosts cannot be read, too many hosts of a zone are out of service, or functions are not " +
		"woken; or that works again",
	Notes: toOperators + " Only the broker gets `monitor/wake/` and the name of a function that cannot be woken, and " +
		"`monitor/clock`, when periodic work is overdue.",
	Example: `{"monitor": "nodes", "status": "failed", "reason": "nova is not available"}`,
}

var statsEvent = EventType{
	Type: StatsEvent, Data: HourStat{}, Subject: "the hour", SinkOnly: true,
	Summary: "The servers of an hour are counted",
}
