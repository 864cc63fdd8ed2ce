-- +goose Up

-- Orders are listed the newest first: those of a project, or those that were placed through a connection.
create index orders_project on orders (project_id, created_at desc, id desc);
create index orders_connection on orders (connection_id, created_at desc, id desc) where connection_id is not null;

-- +goose Down
drop index orders_project, orders_connection;
