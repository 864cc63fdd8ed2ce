-- +goose Up

-- How large the request log was at the end of each hour of the last days.
create table request_log_sizes (
    hour  timestamptz primary key,
    bytes bigint not null
);

-- +goose Down
drop table request_log_sizes;
