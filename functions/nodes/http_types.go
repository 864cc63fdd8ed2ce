package nodes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
	"github.com/cloudfn/cloudfn/shared/httpx"
	"github.com/cloudfn/cloudfn/shared/nodes"
)

// Sizes are amounts of what servers use.
type Sizes struct {
	VCPUs  int `json:"vcpus" minimum:"0"`
	RAMMB  int `json:"ram_mb" minimum:"0"`
	DiskGB int `json:"disk_gb" minimum:"0"`
}

// Node is a host of compute.
type Node struct {
	Name           string            `json:"name" minLength:"1"`
	Region         string            `json:"region,omitempty" doc:"Of Keystone. Absent when the cloud has only one."`
	Zone           string            `json:"zone" doc:"Its availability zone in Nova."`
	RegionZone     string            `json:"region_zone,omitempty" doc:"Where its admins say that it is."`
	NetworkZone    string            `json:"network_zone,omitempty" doc:"The same, of the network."`
	Labels         map[string]string `json:"labels"`
	Providers      []string          `json:"providers" doc:"What runs on it besides Nova's hypervisor."`
	Status         domain.NodeStatus `json:"status" enum:"up,suspect,down,unknown"`
	StatusReason   string            `json:"status_reason,omitempty" doc:"Why it is suspect or down."`
	StatusSince    time.Time         `json:"status_since,omitzero" doc:"Absent until watch-nodes has observed it."`
	StatusURL      string            `json:"status_url,omitempty" doc:"What watch-nodes reads when it is suspect."`
	Alert          bool              `json:"alert" doc:"Whether its changes are events."`
	Schedulable    bool              `json:"schedulable" doc:"Whether Nova places servers on it: false when disabled."`
	CordonedBy     string            `json:"cordoned_by,omitempty" enum:"cloudfn,other" doc:"Who has disabled it."`
	DisabledReason string            `json:"disabled_reason,omitempty" doc:"What Nova keeps with that."`
	AutoCordon     string            `json:"auto_cordon_after,omitempty" doc:"Down for so long: it is cordoned."`
	AutoDrain      string            `json:"auto_drain_after,omitempty"`
	HeartbeatAt    time.Time         `json:"heartbeat_at,omitzero" doc:"When its nova-compute or agent reported last."`
	Capacity       Sizes             `json:"capacity" doc:"What servers may use, by Placement's ratios."`
	Used           Sizes             `json:"used"`
	Servers        int               `json:"servers" minimum:"0" doc:"The number of servers on it."`
	Drain          *Drain            `json:"drain,omitempty" doc:"The last one, until the host is uncordoned."`
	Reservable     string            `json:"reservable" enum:"no,joining,yes,leaving"`
	Reason         string            `json:"reason,omitempty" doc:"Why it does not join or leave yet."`
	Lease          *NodeLease        `json:"lease,omitempty" doc:"That has it, or gets it next; absent without one."`
	Isolation      string            `json:"isolation" enum:"proven,unproven,unknown"`
	IsolationText  string            `json:"isolation_detail,omitempty" doc:"What the test found, and what is missing."`
	TestedAt       time.Time         `json:"tested_at,omitzero" doc:"When the last self-test ended; of no host alone."`
}

// Drain is the last drain of a node.
type Drain struct {
	ID          *uuid.UUID         `json:"id,omitempty" doc:"Absent in a dry run."`
	State       domain.DrainStatus `json:"state" enum:"planned,running,cancelled,done,failed"`
	Reason      string             `json:"reason,omitempty" doc:"Why it has failed, or waits."`
	IsAutomatic bool               `json:"automatic" doc:"After the node's auto_drain_after."`
	RequestedBy *DrainRequester    `json:"requested_by,omitempty" doc:"Absent when automatic, and in a dry run."`
	Parallel    int                `json:"parallel,omitempty"`
	Timeout     string             `json:"server_timeout,omitempty" minLength:"1"`
	Done        int                `json:"done" minimum:"0" doc:"Servers that have moved."`
	Left        int                `json:"left" minimum:"0" doc:"Servers that wait or move."`
	Room        string             `json:"room,omitempty" enum:"yes,no,unknown" doc:"Of a dry run: for all servers."`
	Moving      []MovingServer     `json:"moving" doc:"What Nova was requested to move."`
	Skipped     []SkippedServer    `json:"skipped" doc:"What stays on the node."`
	Servers     []DrainServer      `json:"servers,omitempty" doc:"All of them. Lists of nodes do not have it."`
	CreatedAt   time.Time          `json:"created_at,omitzero"`
	EndedAt     time.Time          `json:"ended_at,omitzero" doc:"Absent until nothing moves any more."`
}

// DrainRequester is the admin who has begun a drain, with the project of the token.
type DrainRequester struct {
	UserID    string `json:"user_id" minLength:"1"`
	UserName  string `json:"user_name,omitempty"`
	ProjectID string `json:"project_id"`
}

// MovingServer is a server on its way.
type MovingServer struct {
	ServerID string    `json:"server_id" minLength:"1"`
	Name     string    `json:"name"`
	Method   string    `json:"method" enum:"live,cold"`
	Since    time.Time `json:"since,omitzero"`
}

// SkippedServer is a server that stays.
type SkippedServer struct {
	ServerID string `json:"server_id" minLength:"1"`
	Name     string `json:"name"`
	Reason   string `json:"reason"`
}

// DrainServer is how far a server of a drain is.
type DrainServer struct {
	ServerID  string                   `json:"server_id" minLength:"1"`
	Name      string                   `json:"name"`
	ProjectID string                   `json:"project_id"`
	Method    string                   `json:"method,omitempty" enum:"live,cold" doc:"Absent when not chosen yet."`
	State     domain.DrainServerStatus `json:"state" enum:"pending,migrating,confirming,moved,skipped"`
	Reason    string                   `json:"reason,omitempty" doc:"Why it is skipped, or waits."`
	Room      string                   `json:"room,omitempty" enum:"yes,no,unknown"`
	Target    string                   `json:"target,omitempty" doc:"The host that it is on now."`
}

// NodePage is a page of hosts.
type NodePage struct {
	Items []Node  `json:"nodes" maxItems:"1000"`
	Next  *string `json:"next" pattern:"^/v1/nodes\\?" doc:"The URL of the next page, without a host, or null."`
}

// NodeServer is a server on a host, of any project.
type NodeServer struct {
	ID        string `json:"id" minLength:"1"`
	Name      string `json:"name"`
	Status    string `json:"status" doc:"Nova's."`
	ProjectID string `json:"project_id"`
}

// NodeServers is a page of the servers on a host.
type NodeServers struct {
	Items []NodeServer `json:"servers" maxItems:"1000"`
	Next  *string      `json:"next" pattern:"^/v1/nodes/.+/servers\\?" doc:"The URL of the next page, or null."`
}

// reservable are the words for the states of the pool.
var reservable = map[domain.PoolState]string{
	"": "no", domain.NodeJoining: "joining", domain.NodeReservable: "yes", domain.NodeLeaving: "leaving",
}

// show is a node as the API has it; isWhole adds every server of its drain.
func show(n node, isWhole bool) Node {
	s := n.stored
	status, reason := n.judge()
	shown := Node{
		Name: n.Name, Region: n.region, Zone: n.Zone, RegionZone: s.RegionZone, NetworkZone: s.NetworkZone,
		Labels: s.Labels, Providers: s.Providers, Status: status, StatusReason: reason,
		StatusURL: s.StatusURL, Alert: s.Alert || s.Version == 0, Schedulable: n.IsEnabled, CordonedBy: n.cordonedBy(),
		DisabledReason: n.DisabledReason, AutoCordon: domain.PeriodOf(s.AutoCordonAfter).String(),
		AutoDrain: domain.PeriodOf(s.AutoDrainAfter).String(), HeartbeatAt: n.heartbeatAt(),
		Capacity: Sizes{VCPUs: n.VCPUs, RAMMB: n.RAMMB, DiskGB: n.DiskGB},
		Used:     Sizes{VCPUs: n.UsedVCPUs, RAMMB: n.UsedRAMMB, DiskGB: n.UsedDiskGB},
		Servers:  n.Servers, Reservable: reservable[s.Pool], Reason: s.Reason,
		Isolation: cmp.Or(n.isolation.Result, "unknown"), IsolationText: n.isolation.Detail,
		TestedAt: n.isolation.TestedAt.UTC(), Lease: showLease(n.lease),
	}
	if s.Pool == "" { // the tests were of other hosts
		shown.Isolation, shown.IsolationText, shown.TestedAt = "unknown", "", time.Time{}
	}
	if status == s.Status && status != domain.NodeUnknown {
		shown.StatusSince = s.StatusSince
	}
	if shown.Labels == nil {
		shown.Labels = map[string]string{}
	}
	if shown.Providers == nil {
		shown.Providers = []string{}
	}
	if n.drain != nil {
		shown.Drain = showDrain(*n.drain, isWhole)
	}
	if n.room != nil {
		shown.Drain.showRoom(n.room)
	}
	return shown
}

// showRoom adds to a dry run whether other hosts have room.
func (d *Drain) showRoom(room map[string]string) {
	d.Room = nodes.RoomYes
	for i := range d.Servers {
		one := room[d.Servers[i].ServerID]
		if d.Servers[i].Room = one; one == nodes.RoomNo || one == nodes.RoomUnknown && d.Room != nodes.RoomNo {
			d.Room = one
		}
	}
}

func showDrain(d domain.Drain, isWhole bool) *Drain {
	shown := &Drain{
		State: d.Status, Reason: d.Reason, IsAutomatic: d.IsAutomatic, Moving: []MovingServer{},
		Skipped: []SkippedServer{}, CreatedAt: d.CreatedAt, EndedAt: d.EndedAt, Parallel: d.Parallel,
		Timeout: domain.PeriodOf(d.ServerTimeout).String(),
	}
	if by := d.Actor; by != nil {
		shown.RequestedBy = &DrainRequester{UserID: by.UserID, UserName: by.UserName, ProjectID: by.ProjectID}
	}
	if d.ID != uuid.Nil {
		shown.ID = &d.ID
	}
	shown.Done, shown.Left, _ = d.Counts()
	for _, v := range d.Servers {
		switch v.Status {
		case domain.DrainMigrating, domain.DrainConfirming:
			shown.Moving = append(shown.Moving, MovingServer{
				ServerID: v.ServerID, Name: v.Name, Method: v.Method, Since: v.BegunAt,
			})
		case domain.DrainSkipped:
			shown.Skipped = append(shown.Skipped, SkippedServer{ServerID: v.ServerID, Name: v.Name, Reason: v.Reason})
		}
		if isWhole {
			shown.Servers = append(shown.Servers, DrainServer{
				ServerID: v.ServerID, Name: v.Name, ProjectID: v.ProjectID, Method: v.Method, State: v.Status,
				Reason: v.Reason, Target: v.Target,
			})
		}
	}
	return shown
}

// ChangeNode is the body of PATCH /v1/nodes/{name}, a JSON merge patch (RFC 7396): what is absent stays, and null
// resets a field or removes a label.
type ChangeNode struct {
	Labels      labelsPatch           `json:"labels,omitzero" nullable:"true" maxProperties:"50" doc:"Texts by key."`
	RegionZone  textPatch             `json:"region_zone,omitzero" nullable:"true" maxLength:"255" doc:"Where it is."`
	NetworkZone textPatch             `json:"network_zone,omitzero" nullable:"true" maxLength:"255"`
	Providers   httpx.Patch[[]string] `json:"providers,omitzero" nullable:"true" maxItems:"20" uniqueItems:"true"`
	StatusURL   textPatch             `json:"status_url,omitzero" nullable:"true" maxLength:"2048"`
	Alert       httpx.Patch[bool]     `json:"alert,omitzero" nullable:"true" doc:"Whether its changes are events."`

	AutoCordon textPatch `json:"auto_cordon_after,omitzero" nullable:"true" maxLength:"100" example:"PT10M"`
	AutoDrain  textPatch `json:"auto_drain_after,omitzero" nullable:"true" maxLength:"100" example:"PT30M"`
}

type (
	textPatch   = httpx.Patch[string]
	labelsPatch = httpx.Patch[map[string]*string] // null removes a label
)

const maxLabels = 50

// Resolve implements huma.Resolver.
func (c *ChangeNode) Resolve(huma.Context) (faults []error) {
	for key, value := range c.Labels.Apply(nil) {
		if value == nil { // it is removed
			continue
		}
		if fault := domain.CheckLabel(key, *value); fault != "" {
			faults = append(faults, apperr.InvalidField("labels."+key, fault))
		}
	}
	for n, provider := range c.Providers.Apply(nil) {
		if err := domain.CheckText(fmt.Sprintf("providers[%d]", n), provider, domain.MaxNameLength); err != nil {
			faults = append(faults, err)
		}
	}
	for field, p := range map[string]textPatch{"auto_cordon_after": c.AutoCordon, "auto_drain_after": c.AutoDrain} {
		if p.IsZero() || p.IsNull() {
			continue
		}
		if _, fault := fixed(p.Apply("")); fault != "" || p.Apply("") == "" {
			faults = append(faults, apperr.InvalidField(field, cmp.Or(fault, "must be an ISO 8601 duration, or null")))
		}
	}
	return faults
}

// apply is what is set of a node after the change.
func (c *ChangeNode) apply(before domain.Node) (after domain.NodeSettings, err error) {
	after = domain.NodeSettings{
		Labels: c.labels(before.Labels), RegionZone: c.RegionZone.Apply(before.RegionZone),
		NetworkZone: c.NetworkZone.Apply(before.NetworkZone), Providers: c.Providers.Apply(before.Providers),
		StatusURL:       c.StatusURL.Apply(before.StatusURL),
		Alert:           c.Alert.IsNull() || c.Alert.Apply(before.Alert || before.Version == 0),
		AutoCordonAfter: before.AutoCordonAfter, AutoDrainAfter: before.AutoDrainAfter,
	}
	if !c.AutoCordon.IsZero() {
		after.AutoCordonAfter, _ = fixed(c.AutoCordon.Apply("")) // Resolve has refused what cannot be read
	}
	if !c.AutoDrain.IsZero() {
		after.AutoDrainAfter, _ = fixed(c.AutoDrain.Apply(""))
	}
	if len(after.Labels) > maxLabels {
		err = apperr.InvalidField("labels", "the node would have more than 50 labels")
	}
	return after, err
}

// labels are those of a node after the change; null instead of an object removes all.
func (c *ChangeNode) labels(before map[string]string) map[string]string {
	if c.Labels.IsZero() {
		return before
	}
	after := map[string]string{}
	if !c.Labels.IsNull() {
		maps.Copy(after, before)
	}
	for key, value := range c.Labels.Apply(nil) {
		if delete(after, key); value != nil {
			after[key] = *value
		}
	}
	return after
}

// fixed is the length of a period that has one: years and months have none. An absent period is zero.
func fixed(p string) (length time.Duration, fault string) {
	if p == "" {
		return 0, ""
	}
	parsed, err := domain.ParsePeriod(p)
	if err != nil {
		return 0, err.Error()
	}
	lengths := map[time.Duration]bool{}
	for _, month := range []time.Month{time.January, time.February, time.April} {
		from := time.Date(2023, month, 1, 0, 0, 0, 0, time.UTC)
		length = parsed.AddTo(from).Sub(from)
		lengths[length] = true
	}
	if strings.Contains(parsed.String(), "Y") || len(lengths) > 1 {
		return 0, "must be of weeks, days, hours, minutes and seconds: years and months differ in length"
	}
	return length, ""
}

type changeInput struct {
	NodePath
	httpx.MatchRequest
	Body ChangeNode
}

func (h handler) change(ctx context.Context, in *changeInput) (*nodeOutput, error) {
	return reply(h.svc.Change(ctx, h.session(ctx), in.Name, &in.Body, httpx.IfMatch(ctx, "node")))
}
