-- +goose Up

-- Who is signed in at the console. Only the browser has the cookie, and without it nothing of a session can be read: neither in
-- the database, nor in a copy of it.
create table sessions (
    id         bytea       primary key check (octet_length(id) = 32), -- SHA-256 of the cookie
    sealed     bytea       not null, -- the token and whose it is, encrypted with a key that is made of the cookie
    expires_at timestamptz not null,
    created_at timestamptz not null default now()
);
create index sessions_ending on sessions (expires_at);

-- +goose Down
drop table sessions;
