-- +goose Up

-- Whether a member's object was ready at some time. One that was is not made again because of an error of OpenStack, and
-- what it lacks is drift; one that was not is new.
alter table managed_members add column was_ready boolean not null default false;
update managed_members set was_ready = true where status in ('ready', 'updating');

-- A member has a revision that exists: reconcile-managed compares with it.
alter table managed_members add constraint managed_members_revision_fkey
    foreign key (project_id, managed_id, revision) references managed_revisions not valid;

-- +goose Down
alter table managed_members drop constraint managed_members_revision_fkey, drop column was_ready;
