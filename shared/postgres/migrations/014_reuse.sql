-- +goose NO TRANSACTION
-- +goose Up

alter table instances
    -- Whether an order with reuse may take the server; null = as it was launched through the connection that it is managed through.
    add column if not exists reusable        boolean,
    -- How many times Nova took or refused the call to delete its server without deleting it, and when last.
    add column if not exists delete_tries    integer not null default 0,
    add column if not exists delete_tried_at timestamptz;
-- Why an order has ended other than as it was asked for, where no instance says it.
alter table orders add column if not exists problem jsonb;

-- What was launched, and went over to another connection since, is not that connection's to reuse.
update instances i set reusable = false
where i.connection_id is not null and i.state <> 'deleted' and i.origin = 'launched' and i.reusable is null
  and not exists (select from orders o where o.project_id = i.project_id and o.id = i.order_id and o.connection_id = i.connection_id);

-- +goose Down
alter table orders drop column if exists problem;
alter table instances drop column if exists reusable, drop column if exists delete_tries, drop column if exists delete_tried_at;
