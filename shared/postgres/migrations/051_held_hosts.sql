-- +goose NO TRANSACTION
-- +goose Up

-- Hosts whose time is over and that their lease has not returned are not booked. Built while others write; one that was
-- broken off has left an invalid index behind.
set lock_timeout = 0;
drop index concurrently if exists allocations_held;
create index concurrently allocations_held on allocations (upper(during)) include (node)
    where prepared_at is not null and released_at is null;

-- +goose Down
drop index concurrently if exists allocations_held;
