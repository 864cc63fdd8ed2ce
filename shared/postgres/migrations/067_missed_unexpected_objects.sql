-- +goose Up

-- Since when scans do not find an unexpected object: its row is deleted after a day of that.
alter table unexpected_objects add column missed_at timestamptz;

-- +goose Down
alter table unexpected_objects drop column missed_at;
