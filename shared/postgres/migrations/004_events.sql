-- +goose Up

-- Webhook subscriptions of projects. The project '' has the operator's own sink (K_SINK), which gets all events.
create table callbacks (
    project_id      text        not null,
    id              uuid        not null,
    user_id         text        not null,
    url             text        not null,
    events          text[]      not null default '{}', -- types; empty = all
    instance_id     uuid,
    order_id        uuid,
    status          text        not null check (status in ('pending', 'verified', 'suspended', 'gone')),
    reason          text        not null default '',
    -- Only deliver-events can decrypt the secrets. The previous one signs too until previous_until.
    secret          bytea       not null,
    previous_secret bytea,
    previous_until  timestamptz,
    allowed_rate    integer,    -- deliveries per minute that the receiver consented to; null = any
    seq             bigint      not null default 0, -- of its last event
    -- The receiver as a whole: how often in a row it did not respond, and until when it is not called.
    failures        integer     not null default 0,
    failing_since   timestamptz,
    not_before      timestamptz,
    served_at       timestamptz,
    claim_id        uuid,       -- of the handshake
    claimed_until   timestamptz,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    -- A callback gets the events of its own project; or, through a connection, those of what runs through it in another
    -- project.
    of_project      text,       -- null = its own
    connection_id   uuid,
    -- When rotations overlap: the secrets before previous_secret. They sign too until previous_until.
    older_secrets   bytea[]     not null default '{}',
    primary key (project_id, id),
    check (instance_id is null or order_id is null)
);
create index callbacks_of on callbacks (coalesce(of_project, project_id));
create index callbacks_pending on callbacks (coalesce(not_before, '-infinity')) where status = 'pending';

-- The outbox. An event is written in the transaction of its change; (subject, seq) is its id. The trigger fan_out
-- writes its deliveries: fan_out.sql.
create table events (
    project_id    text        not null, -- '' = it concerns the whole cloud
    subject       text        not null,
    seq           bigint      not null,
    type          text        not null,
    at            timestamptz not null,
    order_id      uuid,       -- of what belongs to an order
    data          jsonb       not null,
    connection_id uuid,       -- of what happened through a connection
    primary key (project_id, subject, seq)
);
create index events_at on events using brin (at);

-- A row for every event that a callback gets. A stream is what is kept in order: the events of one subject, or a single
-- event that is redelivered by hand.
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
    answer        smallint,   -- the HTTP status of the receiver's last response; null = it did not respond
    error         text        not null default '', -- in cloudfn's words: a receiver's response is shown to no one
    created_at    timestamptz not null,
    attempted_at  timestamptz,
    primary key (project_id, id),
    unique (project_id, callback_id, stream, seq),
    foreign key (project_id, callback_id) references callbacks on delete cascade,
    foreign key (event_project, subject, event_seq) references events on delete cascade
);
create index deliveries_event on deliveries (event_project, subject, event_seq);
create index deliveries_of on deliveries (project_id, callback_id, created_at, id); -- the order of lists

create table streams (
    project_id    text        not null,
    callback_id   uuid        not null,
    stream        text        not null,
    head          bigint      not null, -- the last delivery that has ended: delivered, or dead
    tail          bigint      not null, -- the last delivery
    next_at       timestamptz not null,
    attempts      integer     not null default 0, -- at the delivery after head
    failing_since timestamptz,
    claim_id      uuid,
    claimed_until timestamptz,
    primary key (project_id, callback_id, stream),
    foreign key (project_id, callback_id) references callbacks on delete cascade
);
create index streams_due on streams (project_id, callback_id, next_at) where head < tail;
create index streams_next on streams (next_at) where head < tail;
create index streams_claimed on streams (claim_id) where claim_id is not null;
create index streams_idle on streams (next_at) where head = tail;
