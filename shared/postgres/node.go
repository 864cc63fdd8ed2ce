package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

// Nodes are the hosts of compute. The reservable pool is the hosts that leases can have, and those on their way into it
// or out of it. A host whose pool is empty is in none.
type Nodes struct {
	DB           *DB
	EventProject string // gets the events of nodes; empty = only the operator's sink
}

const (
	nodeColumns = `
name, region, zone, pool, reason, is_up, provider_id, vcpus, ram_mb, disk_gb, traits, attributes, requested_by,
seen_at, down_since, updated_at, labels, region_zone, network_zone, providers, status_url, alert,
coalesce(auto_cordon_after, interval '0') as auto_cordon_after,
coalesce(auto_drain_after, interval '0') as auto_drain_after, status, status_reason, status_since, service_at,
agent_at, service_id, enabled, disabled_reason, cordoned_at, servers, usage,
version, seq, not_up_since, forced_down, probed_at, answered_at`

	joinSQL = `
insert into nodes as n (name, region, zone, pool, is_up, provider_id, vcpus, ram_mb, disk_gb, traits, attributes,
                        requested_by)
values ($1, $2, $3, 'joining', $4, $5, $6, $7, $8, $9, $10, $11)
on conflict (name) do update
set pool = case when n.pool in ('', 'leaving') then 'joining' else n.pool end, reason = '',
    requested_by = case when n.pool in ('', 'leaving') then excluded.requested_by else n.requested_by end,
    updated_at = clock_timestamp()
returning ` + nodeColumns

	lockNodeSQL = "select " + nodeColumns + " from nodes where name = $1 and pool <> '' for update"

	openAllocationsSQL = `
select count(*)::int as count, max(upper(during)) as until from allocations
where node = $1 and released_at is null and (upper(during) > clock_timestamp() or prepared_at is not null)`

	leaveSQL = `
update nodes set pool = 'leaving', reason = '', requested_by = $2, updated_at = clock_timestamp()
where name = $1 returning ` + nodeColumns

	leftSQL = `
update nodes n set pool = '', reason = '', updated_at = clock_timestamp()
where name = $1 and pool = 'leaving'
  and not exists (select from allocations a where a.node = n.name and a.released_at is null
                  and (upper(a.during) > clock_timestamp() or a.prepared_at is not null))`

	setPoolSQL = `
update nodes set pool = $3, reason = $4, updated_at = clock_timestamp()
where name = $1 and pool = $2 and (pool, reason) <> ($3, $4)`

	upColumns = `is_up = $2, down_since = case when $2 then null else coalesce(down_since, clock_timestamp()) end`
)

// Join records that a host is to become reservable. One that is so already, or about to be, stays as it is; one that
// was leaving joins again.
func (s Nodes) Join(ctx context.Context, n domain.Node) (domain.Node, error) {
	return queryOne[domain.Node](ctx, s.DB.pool, joinSQL, n.Name, n.Region, n.Zone, n.IsUp, n.ProviderID, n.VCPUs,
		n.RAMMB, n.DiskGB, orEmpty(n.Traits), orEmptyMap(n.Attributes), n.RequestedBy)
}

// Leave records that a host is to become an ordinary one again. It is a Conflict while reservations have it, now or
// later, and NotFound for a host that is not reservable.
func (s Nodes) Leave(ctx context.Context, name, requestedBy string) (left domain.Node, err error) {
	err = s.DB.change(ctx, func(tx pgx.Tx) error {
		if left, err = queryOne[domain.Node](ctx, tx, lockNodeSQL, name); err != nil {
			return orNotFound(err, "host %q is not reservable", name)
		}
		type allocations struct {
			Count int
			Until time.Time
		}
		open, err := queryOne[allocations](ctx, tx, openAllocationsSQL, name)
		if err != nil || left.Pool == domain.NodeLeaving {
			return err
		}
		switch until := open.Until.UTC().Format(time.RFC3339); open.Count {
		case 0:
		case 1:
			return apperr.New(apperr.Conflict, "a reservation has host %s until %s: end its lease first", name, until)
		default:
			return apperr.New(apperr.Conflict, "%d reservations have host %s, the last one until %s: end their leases "+
				"first", open.Count, name, until)
		}
		left, err = queryOne[domain.Node](ctx, tx, leaveSQL, name, requestedBy)
		return err
	})
	return left, err
}

// Left ends a host's leaving: it is an ordinary one again. ok is false when it was to join meanwhile.
func (s Nodes) Left(ctx context.Context, name string) (ok bool, err error) {
	n, err := exec(ctx, s.DB.pool, leftSQL, name)
	return n == 1, err
}

// SetPool moves a host to another state of the pool, with the reason why it goes no further. With the same state it
// only changes the reason. ok is false when it is not in the state from any more, or nothing changes.
func (s Nodes) SetPool(
	ctx context.Context, name string, from, to domain.PoolState, reason string,
) (ok bool, err error) {
	n, err := exec(ctx, s.DB.pool, setPoolSQL, name, from, to, reason)
	return n == 1, err
}

// SetUp records whether Nova sees a host's service.
func (s Nodes) SetUp(ctx context.Context, name string, isUp bool) error {
	_, err := exec(ctx, s.DB.pool, "update nodes set "+upColumns+`, updated_at = clock_timestamp()
where name = $1 and is_up <> $2`, name, isUp)
	return err
}

// Pool reads every host of the pool by name, of any state.
func (s Nodes) Pool(ctx context.Context) ([]domain.Node, error) {
	return queryAll[domain.Node](ctx, s.DB.pool, "select "+nodeColumns+" from nodes where pool <> '' order by name")
}

const recordHostSQL = `
update nodes set zone = $3, provider_id = $4, vcpus = $5, ram_mb = $6, disk_gb = $7, traits = $8, attributes = $9, ` +
	upColumns + `, forced_down = $10, seen_at = clock_timestamp(),
    updated_at = case when (zone, provider_id, vcpus, ram_mb, disk_gb, traits, attributes, is_up)
                           is distinct from ($3, $4, $5, $6, $7, $8::text[], $9::jsonb, $2)
                      then clock_timestamp() else updated_at end
where name = $1 and pool <> ''`

// PoolTrait reads the trait that hosts of the pool have and only cloudfn knows.
func (s Nodes) PoolTrait(ctx context.Context) (string, error) {
	return queryValue[string](ctx, s.DB.pool, "select trait from pool_traits")
}

// RecordHosts records what Nova and Placement show of hosts of the pool. Other hosts are left out.
func (s Nodes) RecordHosts(ctx context.Context, hosts []domain.ComputeHost) error {
	batch := &pgx.Batch{}
	for _, h := range hosts {
		batch.Queue(recordHostSQL, h.Name, h.IsUp, h.Zone, h.ProviderID, h.VCPUs, h.RAMMB, h.DiskGB, orEmpty(h.Traits),
			orEmptyMap(h.Attributes), h.ForcedDown)
	}
	if batch.Len() == 0 {
		return nil
	}
	if err := s.DB.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("what hosts are: %w", classify(err))
	}
	return nil
}

// orEmptyMap is an empty map for nil, which would be stored as null.
func orEmptyMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// Get reads a host. It is NotFound for one that was never observed or described.
func (s Nodes) Get(ctx context.Context, name string) (domain.Node, error) {
	found, err := queryOne[domain.Node](ctx, s.DB.pool, "select "+nodeColumns+" from nodes where name = $1", name)
	return found, orNotFound(err, "unknown node %.64q", name)
}

// All reads every host by name.
func (s Nodes) All(ctx context.Context) ([]domain.Node, error) {
	return queryAll[domain.Node](ctx, s.DB.pool, "select "+nodeColumns+" from nodes order by name")
}

const (
	describeNewSQL = `
insert into nodes (name, labels, region_zone, network_zone, providers, status_url, alert, auto_cordon_after,
                   auto_drain_after)
select $1, $3, $4, $5, $6, $7, $8, $9, $10 where $2::bigint = 0
on conflict do nothing
returning ` + nodeColumns

	describeSQL = `
update nodes
set labels = $3, region_zone = $4, network_zone = $5, providers = $6, status_url = $7, alert = $8,
    auto_cordon_after = $9, auto_drain_after = $10, version = version + 1, updated_at = clock_timestamp()
where name = $1 and version = $2
returning ` + nodeColumns
)

// Describe replaces what admins set of a host, and stores one that is not known yet. It is domain.ErrChanged unless the
// host's version is the given one, which is 0 for a host that is not stored.
func (s Nodes) Describe(
	ctx context.Context, name string, settings domain.NodeSettings, version int64,
) (domain.Node, error) {
	sql := describeSQL
	if version == 0 {
		sql = describeNewSQL
	}
	described, err := queryOne[domain.Node](ctx, s.DB.pool, sql, name, version, orEmptyMap(settings.Labels),
		settings.RegionZone, settings.NetworkZone, orEmpty(settings.Providers), settings.StatusURL, settings.Alert,
		orNullDuration(settings.AutoCordonAfter), orNullDuration(settings.AutoDrainAfter))
	return described, ifNone(err, domain.ErrChanged)
}

const (
	nameNodeSQL = `insert into nodes (name) values ($1) on conflict do nothing`

	// updated_at keeps what Nova showed before from undoing it: Observe.
	setCordonedSQL = `
with before as (
    select name as old_name, enabled <> not $3 or (cordoned_at is not null) <> $3 as differs
    from nodes where name = $2 for no key update
), after as (
    update nodes n
    set enabled = not $3, disabled_reason = case when $3 then $4 else '' end,
        cordoned_at = case when $3 then coalesce(n.cordoned_at, clock_timestamp()) end,
        updated_at = clock_timestamp(), seq = n.seq + (b.differs and n.alert)::int
    from before b where n.name = b.old_name
    returning n.*, n.status as previous_status, b.differs and n.alert as notify
), event as (` + nodeEventSQL + ` after where notify)
select ` + nodeColumns + ` from after`
)

// SetCordoned records that cloudfn has disabled the host's nova-compute in Nova, with that reason, or enabled it. A
// change is an event, unless the host is muted. A host that is not known yet is stored.
func (s Nodes) SetCordoned(
	ctx context.Context, name string, isCordoned bool, reason string,
) (after domain.Node, err error) {
	return changeValue(ctx, s.DB, func(tx pgx.Tx) (domain.Node, error) {
		if _, err := exec(ctx, tx, nameNodeSQL, name); err != nil {
			return after, err
		}
		return queryOne[domain.Node](ctx, tx, setCordonedSQL, s.EventProject, name, isCordoned, reason)
	})
}

// Delete forgets a host with its drains. It is a Conflict while it is in the reservable pool.
func (s Nodes) Delete(ctx context.Context, name string) error {
	deleted, err := exec(ctx, s.DB.pool, "delete from nodes where name = $1 and pool = ''", name)
	if err != nil || deleted > 0 {
		return err
	}
	if _, err = s.Get(ctx, name); err == nil {
		err = apperr.New(apperr.Conflict, "node %s is reservable: end that first", name)
	}
	return err
}

// Isolations say of each region whether servers without the trait stay off reservable hosts.
type Isolations struct{ DB *DB }

// Get reads what the last self-test of a region found; the zero value = there was none.
func (s Isolations) Get(ctx context.Context, region string) (domain.Isolation, error) {
	found, _, err := queryFound[domain.Isolation](ctx, s.DB.pool,
		"select result, detail, tested_at, proven_since from isolation where region = $1", region)
	return found, err
}

// Set records what a self-test of a region has found now. ProvenSince stays while each finds the same.
func (s Isolations) Set(ctx context.Context, region string, result, detail string) error {
	_, err := exec(ctx, s.DB.pool, `
insert into isolation as i (region, result, detail, proven_since)
values ($1, $2, $3, case when $2 = 'proven' then clock_timestamp() end)
on conflict (region) do update
set result = excluded.result, detail = excluded.detail, tested_at = clock_timestamp(),
    proven_since = case when excluded.result = 'proven' and i.result = 'proven'
        then coalesce(i.proven_since, excluded.proven_since) else excluded.proven_since end`, region, result, detail)
	return err
}
