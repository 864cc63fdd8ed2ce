-- +goose Up

-- Another host has taken its place: it is returned when no server of the reservation is on it.
alter table allocations add column replaced_at timestamptz;

-- +goose Down
alter table allocations drop column replaced_at;
