-- +goose Up

-- What the counts of an hour add up to, for a domain and for the cloud (the domain ''). Whoever writes counts deletes the sums of their
-- hours first; collect-stats makes them again. complete says that no project of the view is missing.
create table stats_sums (
    domain_id text        not null,
    hour      timestamptz not null,
    running   integer     not null,
    total     integer     not null,
    uncertain integer     not null,
    rebuilt   boolean     not null,
    settled   boolean     not null,
    complete  boolean     not null,
    by_status jsonb       not null,
    primary key (domain_id, hour)
);
create index stats_sums_hour on stats_sums (hour);

-- +goose Down
drop table stats_sums;
