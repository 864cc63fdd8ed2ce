-- +goose Up

-- Since when a host is suspect or down, which a host that goes from the one to the other keeps; null = it is neither.
alter table nodes add column not_up_since timestamptz;
update nodes set not_up_since = status_since where status in ('suspect', 'down');

-- +goose Down
alter table nodes drop column not_up_since;
