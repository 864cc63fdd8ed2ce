-- +goose Up

-- How far retention has read the final orders: one row, or none at the beginning.
create table retention_markers (
    one        boolean     primary key check (one),
    updated_at timestamptz not null,
    project_id text        not null,
    order_id   uuid        not null
);

-- +goose Down
drop table retention_markers;
