-- The tables of stretto: the one place that defines them.
--
-- No schema is named here: the tables are created in the first one of the connection's search_path.
-- PostgreSQL 15 to 18. Domain rows (chat_group, conversation, conversation_member) are the truth;
-- an attempt is metadata about a request and may be deleted at any time without harm.

-- attempt: the record of one owner's request, under one key, to create one group.
--
-- Its primary key is the id of the group it would create, which follows from owner and key: the
-- client's key itself is stored nowhere. The claim inserts the row as pending, and settling updates
-- it once; half-filled pages keep that update on the same page (HOT).
CREATE TABLE attempt (
    group_id        uuid        PRIMARY KEY,
    owner_id        text        NOT NULL CHECK (char_length(owner_id) BETWEEN 1 AND 128),
    -- Identifies what the request means: another fingerprint under the same key is another request.
    fingerprint     bytea       NOT NULL CHECK (octet_length(fingerprint) = 16),
    -- Decides who may lead: a write that carries another token writes nothing.
    claim_token     uuid        NOT NULL,
    status          text        NOT NULL DEFAULT 'pending'
                                CHECK (status IN ('pending', 'succeeded', 'failed')),
    conversation_id uuid,
    failure_code    text        CHECK (char_length(failure_code) BETWEEN 1 AND 64),
    failure_detail  text        CHECK (char_length(failure_detail) <= 1024),
    -- The lease runs from here, on the database's clock.
    claimed_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at      timestamptz,

    -- Every state has exactly its own columns.
    CONSTRAINT attempt_succeeded_names_its_conversation
        CHECK ((status = 'succeeded') = (conversation_id IS NOT NULL)),
    CONSTRAINT attempt_failed_says_why
        CHECK ((status = 'failed') = (failure_code IS NOT NULL)
               AND (failure_code IS NULL) = (failure_detail IS NULL)),
    CONSTRAINT attempt_settled_says_when
        CHECK ((status = 'pending') = (settled_at IS NULL))
) WITH (
    fillfactor = 50,
    -- The sweeper makes many dead rows at once; vacuum long before they are a fifth of the table.
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);

-- A settled attempt never changes again (G4): the database refuses it for every client. The
-- condition is part of the trigger, so that the one regular update of a row does not call the
-- function.
CREATE FUNCTION refuse_change_of_settled_attempt() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'attempt % is settled as % and cannot change', OLD.group_id, OLD.status
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER attempt_settled_is_final
    BEFORE UPDATE ON attempt
    FOR EACH ROW
    WHEN (OLD.status <> 'pending')
    EXECUTE FUNCTION refuse_change_of_settled_attempt();

-- conversation: where messages go. Its id is a UUIDv7, which orders conversations and their
-- messages by age. next_offset numbers the messages of a host's chat backend.
CREATE TABLE conversation (
    conversation_id uuid        PRIMARY KEY,
    kind            text        NOT NULL DEFAULT 'group' CHECK (kind IN ('group', 'direct')),
    next_offset     bigint      NOT NULL DEFAULT 0 CHECK (next_offset >= 0),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- chat_group: a named conversation. The primary key enforces "at most one group per owner and key"
-- (G1), whatever happens to the attempts: the id follows from both.
CREATE TABLE chat_group (
    group_id        uuid        PRIMARY KEY,
    owner_id        text        NOT NULL CHECK (char_length(owner_id) BETWEEN 1 AND 128),
    name            text        NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    description     text        CHECK (char_length(description) <= 1024),
    -- Of the request that created the group, and kept as long: another body under the same key is
    -- still recognised when the attempt has been swept.
    fingerprint     bytea       NOT NULL CHECK (octet_length(fingerprint) = 16),
    conversation_id uuid        NOT NULL UNIQUE REFERENCES conversation ON DELETE CASCADE,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- conversation_member: the members of a conversation. The owner is always one.
CREATE TABLE conversation_member (
    conversation_id uuid        NOT NULL REFERENCES conversation ON DELETE CASCADE,
    user_id         text        NOT NULL CHECK (char_length(user_id) BETWEEN 1 AND 128),
    role            text        NOT NULL CHECK (role IN ('owner', 'member')),
    joined_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (conversation_id, user_id)
);

-- "My groups, newest first": conversation ids grow with time.
CREATE INDEX conversation_member_by_user ON conversation_member (user_id, conversation_id);

-- outbox: events that were committed together with the rows that they report (G8). An event waits
-- here until the relay has published it to the bus, and is kept as history until its retention
-- ends.
CREATE TABLE outbox (
    -- Follows from the group's id: however often an event is sent, it has one id.
    event_id     uuid        PRIMARY KEY,
    event_type   text        NOT NULL CHECK (event_type IN ('group.created')),
    subject      uuid        NOT NULL,
    recipients   text[]      NOT NULL CHECK (cardinality(recipients) BETWEEN 1 AND 1001),
    payload      json        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The writing transaction. Unlike with a sequence, no reader can pass a row that is not
    -- committed yet: everything below the oldest running transaction is either here or never will
    -- be.
    position     xid8        NOT NULL DEFAULT pg_current_xact_id(),
    -- When a relay may take it next: taking postpones it by the lease, a failure by the back-off.
    due_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    tries        integer     NOT NULL DEFAULT 0 CHECK (tries >= 0),
    published_at timestamptz,
    -- Why it is a dead letter, which is not tried again until an operator retries it.
    dead_reason  text        CHECK (char_length(dead_reason) BETWEEN 1 AND 1024),

    CONSTRAINT outbox_published_is_not_dead CHECK (published_at IS NULL OR dead_reason IS NULL)
) WITH (
    -- Every event is taken once: half-filled pages keep that update on the same page (HOT).
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);

-- The events that are not published yet: as small as the relay's backlog. Its first entry is the
-- position to resume from; due_at is left out, so that taking an event is a HOT update.
CREATE INDEX outbox_waiting ON outbox (position) WHERE published_at IS NULL AND dead_reason IS NULL;

-- History is read from a position on.
CREATE INDEX outbox_by_position ON outbox (position);

-- history_start: the position from which on no event was swept. The sweeper moves its one row
-- forward in the transaction that deletes events. A session that asks for an older position is
-- refused.
CREATE TABLE history_start (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    position xid8    NOT NULL DEFAULT '0'
);
INSERT INTO history_start DEFAULT VALUES;

-- webhook: up to where the configured endpoint's events are enrolled, and whether it may be called.
-- The first process that has the setting inserts its one row.
CREATE TABLE webhook (
    is_only      boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    -- SHA-256 of the endpoint's URL, which may contain a secret: what another endpoint has asked for,
    -- a pause or no more events, ends when the URL changes.
    url_digest   bytea       NOT NULL CHECK (length(url_digest) = 32),
    -- Events that this snapshot sees are enrolled: delivered, or waiting in webhook_delivery, or
    -- dead letters there. Unlike a position, a snapshot lists the transactions that were still
    -- running, and waits for none.
    seen         pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    -- When a process has last served it: a webhook that no process serves keeps no event from a
    -- sweep.
    served_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The end of a pause that the endpoint has asked for.
    paused_until timestamptz NOT NULL DEFAULT '-infinity',
    -- When it asked for no more events (410); it stays disabled until an operator enables it.
    disabled_at  timestamptz
);

-- webhook_delivery: events that the endpoint still has to get, and dead letters. A delivered event
-- has no row. No foreign key: it would lock, and slow down, the outbox.
CREATE TABLE webhook_delivery (
    event_id    uuid        PRIMARY KEY,
    -- When it may be taken next, as in the outbox.
    due_at      timestamptz NOT NULL,
    tries       integer     NOT NULL DEFAULT 0 CHECK (tries >= 0),
    dead_reason text        CHECK (char_length(dead_reason) BETWEEN 1 AND 1024),
    -- When its event was committed: the oldest row shows how far the endpoint is behind.
    owed_since  timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);

CREATE INDEX webhook_delivery_due ON webhook_delivery (due_at) WHERE dead_reason IS NULL;

CREATE INDEX webhook_delivery_owed ON webhook_delivery (owed_since) WHERE dead_reason IS NULL;

-- inbox: messages that a consumer has processed, recorded in the consumer's own transaction.
CREATE TABLE inbox (
    consumer    text        NOT NULL CHECK (char_length(consumer) BETWEEN 1 AND 128),
    message_id  uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, message_id)
);

-- schema_version: which numbered versions of the schema this database has, and the checksums of the
-- files that made them.
CREATE TABLE schema_version (
    number     integer     PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
