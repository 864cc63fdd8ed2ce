-- +goose Up

-- Of the action snapshot: the name that the caller gave to the image, and the image.
alter table actions
    add column image_name text not null default '',
    add column image_id   text not null default '';

-- What a lease does at its end takes permissions of its own from now on.
update connections set actions = actions || '{shelve}' where lease_id is not null and actions @> '{stop}';
update connections set actions = actions || '{snapshot}' where lease_id is not null and actions @> '{deallocate}';

-- +goose Down
update connections set actions = array_remove(array_remove(actions, 'shelve'), 'snapshot') where lease_id is not null;
alter table actions drop column image_name, drop column image_id;
