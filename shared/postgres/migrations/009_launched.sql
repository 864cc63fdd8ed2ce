-- +goose Up

-- How many servers were created within the hour that ends at the full hour; null = counted before there was this column.
alter table stats_hourly add column launched integer check (launched >= 0);
alter table stats_sums add column launched integer; -- null while one of the counts is
