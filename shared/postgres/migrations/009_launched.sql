-- +goose Up

-- How many servers were created within the hour that ends at the full hour. Null = counted before there was this
-- column; a sum is null while one of its counts is.
alter table stats_hourly add column launched integer check (launched >= 0);
alter table stats_sums add column launched integer;
