package postgres

import "context"

// measureSQL records the size of the log and of the stored responses for this hour, and adds up by how much it grew
// from one hour to the next within a day. It shrinks when a month is dropped, which makes up for no growth.
const measureSQL = `
with current as (
    select date_trunc('hour', now(), 'UTC') as hour, coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint
        + pg_total_relation_size('idempotency_keys') as bytes
    from pg_inherits where inhparent = 'requests'::regclass
), stored as (
    insert into request_log_sizes as s (hour, bytes) select hour, bytes from current
    on conflict (hour) do update set bytes = excluded.bytes
), old as (
    delete from request_log_sizes where hour < now() - interval '2 days'
)
select coalesce(sum(greatest(grown, 0)), 0)::bigint from (
    select bytes - lag(bytes) over (order by hour) as grown from (
        select hour, bytes from request_log_sizes
        where hour > now() - interval '25 hours' and hour <> (select hour from current)
        union all select hour, bytes from current
    ) sizes
) growth`

// Measure returns by how many bytes the request log and the stored responses to requests with an Idempotency-Key have
// grown, with their indexes, within about a day. Until it has been called for a day it knows less.
func (r Requests) Measure(ctx context.Context) (grown int64, err error) {
	return queryValue[int64](ctx, r.DB.pool, measureSQL)
}
