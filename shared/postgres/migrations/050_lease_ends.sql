-- +goose Up

-- When the end of a lease was begun, for how long it is tried. Before the start it tells a cancelled lease.
alter table leases add column ending_since timestamptz;
update leases set ending_since = updated_at where status = 'ending' or end_result = 'failed';

-- What run-leases has done to servers on the reservation's hosts to end them: [{id, name, did, locked, reset_at, resets}].
alter table reservations add column servers jsonb not null default '[]';

-- How many actions of an instance reservation have ended: the next one has another id.
alter table reservations add column actions_done integer not null default 0;

-- +goose Down
alter table reservations drop column actions_done;
alter table leases drop column ending_since;
alter table reservations drop column servers;
