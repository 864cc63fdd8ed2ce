-- +goose Up

alter table orders add column seq bigint not null default 0;
create index orders_running on orders (created_at) where status = 'running';

alter table instances
    add column spec            jsonb  not null default '{}',
    add column addresses       jsonb  not null default '[]',
    add column key_name        text   not null default '',
    add column key_fingerprint text   not null default '',
    -- The number of the instance's last event.
    add column seq             bigint not null default 0,
    -- When what is known of the server was asked for: what was asked for earlier does not overwrite it.
    add column seen_at         timestamptz,
    -- When Nova first did not know the server any more; it counts as gone at the second look.
    add column missed_at       timestamptz;
create index instances_followed on instances (project_id) where state <> 'deleted';

-- How far each project's servers were read.
create table polls (
    project_id text        primary key,
    since      timestamptz not null, -- changes before this moment are known
    full_at    timestamptz not null  -- when all of its servers were last read, changed or not
);

-- Who gets events: a project's callbacks, and under the project '' the operator's own sink (K_SINK), which gets all.
create table callbacks (
    project_id      text        not null,
    id              uuid        not null,
    user_id         text        not null,
    url             text        not null,
    events          text[]      not null default '{}', -- types; none = all
    instance_id     uuid,
    order_id        uuid,
    status          text        not null check (status in ('pending', 'verified', 'suspended', 'gone')),
    reason          text        not null default '',
    -- Both are sealed: only deliver-events can open them. The previous one signs too, until its time is over.
    secret          bytea       not null,
    previous_secret bytea,
    previous_until  timestamptz,
    allowed_rate    integer,    -- deliveries a minute that the receiver consented to; null = any
    seq             bigint      not null default 0,
    -- The receiver as a whole: how often in a row it gave no answer, and until when it is left alone.
    failures        integer     not null default 0,
    failing_since   timestamptz,
    not_before      timestamptz,
    served_at       timestamptz,
    claim_id        uuid,       -- of the handshake
    claimed_until   timestamptz,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    primary key (project_id, id),
    check (instance_id is null or order_id is null)
);

-- The outbox: what happened, written in the transaction in which it did. (subject, seq) is the event's id.
create table events (
    project_id text        not null, -- '' for what is the whole cloud's
    subject    text        not null,
    seq        bigint      not null,
    type       text        not null,
    at         timestamptz not null,
    order_id   uuid,       -- of what came from an order
    data       jsonb       not null,
    primary key (project_id, subject, seq)
);
create index events_at on events using brin (at);

-- One row for every event that one callback is to get. A stream is what is kept in order: the events of one
-- subject, or a single one that is delivered again by hand.
create table deliveries (
    project_id    text        not null,
    id            uuid        not null default gen_random_uuid(),
    callback_id   uuid        not null,
    stream        text        not null,
    seq           bigint      not null,
    event_project text        not null,
    subject       text        not null,
    event_seq     bigint      not null,
    status        text        not null default 'due' check (status in ('due', 'delivered', 'dead')),
    attempts      integer     not null default 0,
    answer        smallint,   -- the status of the receiver's last answer; null = none came
    error         text        not null default '', -- our own words: what a receiver says is shown to nobody
    created_at    timestamptz not null,
    attempted_at  timestamptz,
    primary key (project_id, id),
    unique (project_id, callback_id, stream, seq),
    foreign key (project_id, callback_id) references callbacks on delete cascade,
    foreign key (event_project, subject, event_seq) references events on delete cascade
);
create index deliveries_event on deliveries (event_project, subject, event_seq);
create index deliveries_of on deliveries (project_id, callback_id, created_at, id); -- as they are listed

create table streams (
    project_id    text        not null,
    callback_id   uuid        not null,
    stream        text        not null,
    head          bigint      not null, -- the last that has ended: delivered, or dead
    tail          bigint      not null, -- the last that there is
    next_at       timestamptz not null,
    attempts      integer     not null default 0, -- at the delivery after head
    failing_since timestamptz,
    claim_id      uuid,
    claimed_until timestamptz,
    primary key (project_id, callback_id, stream),
    foreign key (project_id, callback_id) references callbacks on delete cascade
);
create index streams_due on streams (project_id, callback_id, next_at) where head < tail;
create index streams_claimed on streams (claim_id) where claim_id is not null;
create index streams_idle on streams (next_at) where head = tail;

-- The trigger fan_out writes the deliveries of a new event: fan_out.sql.

-- +goose Down
drop table streams, deliveries, events, callbacks, polls;
alter table instances drop column spec, drop column addresses, drop column key_name, drop column key_fingerprint,
    drop column seq, drop column seen_at, drop column missed_at;
drop index orders_running;
alter table orders drop column seq;
