-- +goose Up

-- What servers use of a host's hypervisors, by Nova. It is read less often than whether the host reports.
alter table nodes add column usage jsonb not null default '{}';
-- When the hypervisors were last read, and after which of them the next page begins; '' = that was the last page.
alter table monitors
    add column details_at timestamptz,
    add column details_marker text not null default '';

-- +goose Down
alter table monitors drop column details_at, drop column details_marker;
alter table nodes drop column usage;
