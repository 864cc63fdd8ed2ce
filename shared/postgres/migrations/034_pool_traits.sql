-- +goose Up

-- The trait of the pool's idle hosts. Nova takes required traits from images, too, so whoever knows it gets onto them:
-- only run-leases reads it.
create table pool_traits (
    is_only boolean primary key default true check (is_only),
    trait   text    not null default 'CUSTOM_CLOUDFN_POOL_' || upper(replace(gen_random_uuid()::text, '-', ''))
);
insert into pool_traits default values;

-- The trait of a reservation's hosts. Those that have hosts in Placement keep the one that follows from their id.
alter table reservations add column trait text not null
    default 'CUSTOM_CLOUDFN_LEASE_' || upper(replace(gen_random_uuid()::text, '-', ''));
update reservations r set trait = 'CUSTOM_CLOUDFN_LEASE_' || upper(replace(r.id::text, '-', ''))
where r.aggregate_id is not null or exists (
    select from allocations a
    where a.project_id = r.project_id and a.reservation_id = r.id and a.prepared_at is not null
);

-- +goose Down
alter table reservations drop column trait;
drop table pool_traits;
