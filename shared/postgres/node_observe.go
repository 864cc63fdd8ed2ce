package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// nodeEventSQL writes the event of nodes, from rows of nodes with previous_status; $1 is the project of the events.
const nodeEventSQL = `
    insert into events (project_id, subject, seq, type, at, data)
    select $1, name, seq, '` + domain.NodeEvent + `', clock_timestamp(), jsonb_build_object(
               'name', name, 'status', status, 'previous_status', previous_status, 'reason', status_reason,
               'since', ` + statusSinceText + `, 'schedulable', enabled, 'cordoned', cordoned_at is not null,
               'zone', zone, 'servers', servers)
    from`

const statusSinceText = `to_char(status_since at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`

// What follows reads reports as ages by the database's clock. A cloud that works has just had a report of some host, so
// the newest one reports whether Nova's clock is ours: then a report's own time counts. Otherwise a host has reported
// when its time differs from the stored one. Nova's word that a host is down counts from when it was first observed,
// because an admin may have forced it down while its nova-compute goes on reporting.
const (
	// $2 to $9, $15 and $16 are the hosts that Nova has, $14 those that it shows only the names of: they stay as they
	// are. What an admin has changed since Nova was queried ($12) stays, and so do servers and usage that were not read
	// (null).
	reportsSQL = `
with given as (
    select * from unnest($2::text[], $3::text[], $4::boolean[], $5::boolean[], $6::text[], $7::text[], $8::integer[],
                         $9::timestamptz[], $15::jsonb[], $16::boolean[])
        as h(name, zone, is_up, enabled, disabled_reason, service_id, servers, service_at, usage, forced_down)
), clock as materialized (
    select clock_timestamp() as now
), agreement as (
    select coalesce(max(service_at) between now - interval '30 seconds' and now + interval '5 seconds', false) as ok
    from clock left join given on true group by now
), before as (
    select * from nodes where name <> all($14::text[]) order by name for no key update
), hidden as (
    update nodes set status_reason = 'its cell does not answer'
    where name = any($14) and status_reason <> 'its cell does not answer'
), reports as (
    select coalesce(h.name, b.name) as name, coalesce(h.zone, b.zone) as zone, h.name is not null as is_there,
           h.name is not null or b.service_id <> '' or b.pool <> '' as is_novas, coalesce(h.is_up, false) as is_up,
           coalesce(h.forced_down, false) as forced_down,
           case when h.is_up then null else coalesce(b.down_since, now) end as down_since,
           coalesce(h.service_id, b.service_id) as service_id, coalesce(h.service_at, b.service_at) as service_at,
           case when h.name is null or h.service_at is null then coalesce(b.reported_at, now)
                when ok then least(h.service_at, now)
                when h.service_at is not distinct from b.service_at then coalesce(b.reported_at, now)
                when h.is_up then now
                else least(h.service_at, now) end as reported_at,
           case when h.name is null or b.updated_at > coalesce($12, now) then b.enabled else h.enabled end as enabled,
           case when h.name is null or b.updated_at > coalesce($12, now) then b.disabled_reason
                else h.disabled_reason end as disabled_reason,
           b.cordoned_at, case when h.name is null then 0 else coalesce(h.servers, b.servers, 0) end as servers,
           case when h.name is null then '{}' else coalesce(h.usage, b.usage, '{}') end as usage,
           coalesce(b.status, 'unknown') as previous_status,
           b.status_since, b.not_up_since, coalesce(b.alert, true) as alert, b.enabled as was_enabled,
           coalesce(b.seq, (extract(epoch from now) * 1000)::bigint) as seq,
           b.agent_at, b.agent_status, b.agent_reason, now
    from clock, agreement, given h full join before b on b.name = h.name
)`

	// $10 and $11 are the limits, $13 the hosts whose status URL has answered.
	statusesSQL = reportsSQL + `, ages as (
    select *, now - agent_at as agent_silent,
           case when is_novas then greatest(now - reported_at, now - down_since) else now - agent_at end as silent,
           to_char(case when is_novas then reported_at else agent_at end at time zone 'utc',
                   'YYYY-MM-DD"T"HH24:MI:SS"Z"') as reported_text
    from reports where is_novas or agent_at is not null
), words as (
    select *,
           case when forced_down or silent > $11::interval then 'down' when silent > $10::interval then 'suspect'
                else 'up' end as service,
           case when agent_silent <= $11 then agent_status else '' end as agent
    from ages
), judged as (
    select *,
           case when forced_down then null
                when service = 'down' and name = any($13::text[]) then 'its status URL answers'
                when service = 'down' and agent = 'up' and agent_silent <= $10 then 'its agent reports' end as spared,
           case when not is_there and is_novas then 'Nova has no such host any more'
                when not is_novas then 'its agent has not reported since ' || reported_text
                when forced_down then 'an admin has forced it down in Nova'
                when now - reported_at > $10 then 'its nova-compute has not reported since ' || reported_text
                else 'Nova says that it is down' end as silence
    from words
), statuses as (
    select *,
           case when 'down' = any(array[agent, case when spared is null then service end]) then 'down'
                when 'suspect' = any(array[agent, service]) or service = 'down' then 'suspect'
                else 'up' end as status
    from judged
)`

	observeSQL = statusesSQL + `, next as (
    select *, case when status = 'up' then ''
                   when agent = status then rtrim('its agent says: ' || agent_reason, ': ')
                   else silence || coalesce('; ' || spared, '') end as reason,
           not (previous_status = 'unknown' and status = 'up') and alert
           and (status <> previous_status or previous_status <> 'unknown' and enabled <> was_enabled) as notify
    from statuses
), after as (
    insert into nodes as n (name, zone, is_up, down_since, service_id, service_at, reported_at, enabled,
                            disabled_reason, cordoned_at, servers, usage, status, status_reason, status_since,
                            not_up_since, seq, forced_down)
    select name, zone, is_up, down_since, service_id, service_at, reported_at, enabled, disabled_reason,
           case when not enabled and starts_with(disabled_reason, '` + domain.CordonMark + `')
                then coalesce(cordoned_at, now) end,
           servers, usage, status, reason,
           case when status = previous_status then coalesce(status_since, now) else now end,
           case when status <> 'up' then coalesce(not_up_since, now) end, seq + notify::int, forced_down
    from next order by name
    on conflict (name) do update
    set zone = excluded.zone, is_up = excluded.is_up, down_since = excluded.down_since,
        service_id = excluded.service_id, service_at = excluded.service_at, reported_at = excluded.reported_at,
        enabled = excluded.enabled, disabled_reason = excluded.disabled_reason, cordoned_at = excluded.cordoned_at,
        servers = excluded.servers, usage = excluded.usage, status = excluded.status,
        status_reason = excluded.status_reason, status_since = excluded.status_since,
        not_up_since = excluded.not_up_since, seq = excluded.seq, forced_down = excluded.forced_down
    returning *
), event as (` + nodeEventSQL + ` after join (select name, previous_status from next where notify) changes using (name)
)
select ` + nodeColumns + ` from after
where name in (select name from next where status <> previous_status) order by name`
)

// Observe records what Nova shows of every host of the cloud, in one statement, and returns the hosts whose status
// changed. A new status is an event, and so is a host that was disabled or enabled, unless the host is muted; the first
// look at a host that is up is no event. Stored hosts that are not given are those that Nova has no more: they become
// suspect and down, and stay until they are deleted. A host whose cell is down keeps its status.
func (s Nodes) Observe(
	ctx context.Context, hosts []domain.ComputeHost, limits domain.NodeLimits,
) (changed []domain.Node, err error) {
	hidden := []string{}
	hosts = slices.DeleteFunc(slices.Clone(hosts), func(h domain.ComputeHost) bool {
		if h.CellDown {
			hidden = append(hidden, h.Name)
		}
		return h.CellDown
	})
	n := len(hosts)
	names, zones, reasons, services := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	up, enabled, servers, seen := make([]bool, n), make([]bool, n), make([]*int, n), make([]*time.Time, n)
	usages, forced := make([]*domain.HostUsage, n), make([]bool, n)
	for i, h := range hosts {
		names[i], zones[i], reasons[i], services[i] = h.Name, h.Zone, h.DisabledReason, h.ServiceID
		up[i], enabled[i], seen[i], forced[i] = h.IsUp, h.IsEnabled, orNull(h.SeenAt), h.ForcedDown
		if !h.IsBrief {
			servers[i], usages[i] = &h.Servers, &domain.HostUsage{
				VCPUs: h.VCPUs, RAMMB: h.RAMMB, DiskGB: h.DiskGB,
				UsedVCPUs: h.UsedVCPUs, UsedRAMMB: h.UsedRAMMB, UsedDiskGB: h.UsedDiskGB,
			}
		}
	}
	return write(ctx, s.DB, queryAll[domain.Node], observeSQL, s.EventProject, names, zones, up, enabled, reasons,
		services, servers, seen, limits.Suspect, limits.Down, orNull(limits.AsOf), orEmpty(limits.Answering), hidden,
		usages, forced)
}

var nodesMonitor = domain.MonitorEventData{Monitor: "nodes"}

func zoneMonitor(zone string) domain.MonitorEventData {
	return domain.MonitorEventData{Monitor: "zone", Zone: zone}
}

// MonitorFailed records that the list of nodes cannot be read. The first failure in a row is an event.
func (s Nodes) MonitorFailed(ctx context.Context, reason string) error {
	return s.DB.monitorFailed(ctx, s.EventProject, nodesMonitor, reason)
}

// MonitorWorks records that the list of nodes was read. The first time after a failure is an event.
func (s Nodes) MonitorWorks(ctx context.Context) error {
	return s.DB.monitorWorks(ctx, s.EventProject, nodesMonitor)
}

// HoldZone records why no host of a zone is cordoned or drained automatically. The first time in a row is an event.
func (s Nodes) HoldZone(ctx context.Context, zone, reason string) error {
	return s.DB.monitorFailed(ctx, s.EventProject, zoneMonitor(zone), reason)
}

// FreeZone records that hosts of a zone may be cordoned and drained automatically again, which is an event.
func (s Nodes) FreeZone(ctx context.Context, zone string) error {
	return s.DB.monitorWorks(ctx, s.EventProject, zoneMonitor(zone))
}

// HeldZones returns the zones that are held or were held, by name.
func (s Nodes) HeldZones(ctx context.Context) (map[string]domain.HeldZone, error) {
	found, err := queryAll[domain.HeldZone](ctx, s.DB.pool,
		"select substr(name, 6) as zone, failed_since as since, ended_at from monitors where name like 'zone/%'")
	zones := make(map[string]domain.HeldZone, len(found))
	for _, z := range found {
		zones[z.Zone] = z
	}
	return zones, err
}

const setProbedSQL = `
with locked as (
    select name from nodes where name = any($1) or name = any($2) order by name for no key update
)
update nodes n set probed_at = clock_timestamp(), answered_at = case when n.name = any($1) then clock_timestamp() end
from locked l where n.name = l.name`

// SetProbed records which hosts' status URLs have answered just now, and which have not.
func (s Nodes) SetProbed(ctx context.Context, answering, silent []string) error {
	_, err := write(ctx, s.DB, exec, setProbedSQL, orEmpty(answering), orEmpty(silent))
	return err
}

// Details returns how far the hypervisors were read.
func (s Nodes) Details(ctx context.Context) (domain.NodeDetails, error) {
	found, _, err := queryFound[domain.NodeDetails](ctx, s.DB.pool,
		"select details_at as at, details_marker as marker from monitors where name = $1", nodesMonitor.Monitor)
	return found, err
}

// SetDetails records that a page of hypervisors was read, and the marker of the next one, "" = it was the last.
func (s Nodes) SetDetails(ctx context.Context, marker string) error {
	_, err := exec(ctx, s.DB.pool, `
insert into monitors (name, details_at, details_marker) values ($1, clock_timestamp(), $2)
on conflict (name) do update set details_at = excluded.details_at, details_marker = excluded.details_marker`,
		nodesMonitor.Monitor, marker)
	return err
}

const setNodeTokenSQL = `
insert into node_tokens as t (node, hash, created_by) values ($1, $2, $3)
on conflict (node) do update set hash = excluded.hash, created_by = excluded.created_by, created_at = clock_timestamp()`

// SetToken stores the hash of a node's token in the place of the one before. A host that is not known yet is stored.
func (s Nodes) SetToken(ctx context.Context, name string, hash []byte, createdBy string) error {
	return s.DB.change(ctx, func(tx pgx.Tx) error {
		if _, err := exec(ctx, tx, nameNodeSQL, name); err != nil {
			return err
		}
		_, err := exec(ctx, tx, setNodeTokenSQL, name, hash, createdBy)
		return err
	})
}

// RevokeToken ends a node's token. It is NotFound for a node without one.
func (s Nodes) RevokeToken(ctx context.Context, name string) error {
	n, err := exec(ctx, s.DB.pool, "delete from node_tokens where node = $1", name)
	if err == nil && n == 0 {
		err = apperr.New(apperr.NotFound, "node %.64q has no token", name)
	}
	return err
}

const heartbeatSQL = `
update nodes set agent_at = clock_timestamp(), agent_status = $3, agent_reason = $4
where name = $1 and exists (select from node_tokens where node = $1 and hash = $2)
returning ` + nodeColumns

// Heartbeat records what an agent reports of its host: up, suspect or down. The next Observe makes its status of it. It
// is Forbidden with the token of another node, and Unauthenticated with one that no node has.
func (s Nodes) Heartbeat(
	ctx context.Context, name string, tokenHash []byte, status domain.NodeStatus, reason string,
) (domain.Node, error) {
	n, found, err := queryFound[domain.Node](ctx, s.DB.pool, heartbeatSQL, name, tokenHash, status, reason)
	if err != nil || found {
		return n, err
	}
	isAnothers, err := queryValue[bool](ctx, s.DB.pool,
		"select exists (select from node_tokens where hash = $1)", tokenHash)
	if err == nil && isAnothers {
		return n, apperr.New(apperr.Forbidden, "the token is that of another node")
	}
	if err == nil {
		err = apperr.New(apperr.Unauthenticated,
			"unknown node token: an admin makes one by POST /v1/nodes/{name}/token")
	}
	return n, err
}
