package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cloudfn/cloudfn/shared/apperr"
	"github.com/cloudfn/cloudfn/shared/domain"
)

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
	described, found, err := queryFound[domain.Node](ctx, s.DB.pool, sql, name, version, orEmptyMap(settings.Labels),
		settings.RegionZone, settings.NetworkZone, orEmpty(settings.Providers), settings.StatusURL, settings.Alert,
		orNullDuration(settings.AutoCordonAfter), orNullDuration(settings.AutoDrainAfter))
	if err == nil && !found {
		err = domain.ErrChanged
	}
	return described, err
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
	err = s.DB.changeTx(ctx, func(tx pgx.Tx) error {
		if _, err := exec(ctx, tx, nameNodeSQL, name); err != nil {
			return err
		}
		after, err = queryOne[domain.Node](ctx, tx, setCordonedSQL, s.EventProject, name, isCordoned, reason)
		return err
	})
	return after, err
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
