-- +goose Up

-- How many calls may have made an object of the member. Only when there were two may an object have been made twice:
-- any other one with its mark is a copy. Of members before this migration no second call is known.
alter table managed_members add column create_calls integer not null default 0;

update managed_members set create_calls = 1 where is_requested;

-- +goose Down
alter table managed_members drop column create_calls;
