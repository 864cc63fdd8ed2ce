-- +goose Up

-- Whether a member was as declared at some time: until then it is new, and after that it lacks what others have taken.
-- Whether its object worked at some time, as declared or not: it may have data, so no error of OpenStack deletes it.
alter table managed_members add column was_ready boolean not null default false,
    add column may_have_data boolean not null default false;
-- Whether a call that makes a member's object may have been sent, for what the member's own revision declares; and whether
-- its reason is what its next step waits for.
alter table managed_members add column is_requested boolean not null default false,
    add column is_waiting boolean not null default false;
-- A change in place that OpenStack rejected was stored as an error of its member.
update managed_members x set was_ready = true, may_have_data = true from managed m
where m.project_id = x.project_id and m.id = x.managed_id
  and (x.status in ('ready', 'updating') or x.status = 'error' and x.object_id <> '' and m.observed_revision > 0);
update managed_members set is_requested = true where object_id = '' and status in ('creating', 'deleting');

-- A member has a revision that exists: reconcile-managed compares with it.
alter table managed_members add constraint managed_members_revision_fkey
    foreign key (project_id, managed_id, revision) references managed_revisions not valid;

-- +goose Down
alter table managed_members drop constraint managed_members_revision_fkey, drop column was_ready,
    drop column may_have_data, drop column is_requested, drop column is_waiting;
