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

-- attempt_trail: what has happened to attempts beside the normal way, in rows that are only added.
-- A claim, its lead and a replay are the normal way, and add none: the attempt's own row shows
-- them.
--
-- Reclaimed, healed and failed are recorded by the statement that does it, in its commit. What only
-- a process sees is recorded soon after, as far as its bounds allow: a key that was claimed again,
-- a write whose outcome was unknown, a key that came with another body.
CREATE TABLE attempt_trail (
    group_id     uuid        NOT NULL,
    -- The order in which rows were added; times may go back with a clock.
    number       bigint      GENERATED ALWAYS AS IDENTITY,
    happened_at  timestamptz NOT NULL,
    what         text        NOT NULL CHECK (what IN ('reclaimed', 'healed', 'failed',
                                                      'claimed_again', 'unknown', 'other_body')),
    -- The process that did it: its host and its number there.
    instance     text        NOT NULL CHECK (char_length(instance) BETWEEN 1 AND 300),
    -- The claim token that the attempt carried before, where a statement replaced or settled it.
    token_before uuid,
    -- The claim token of the request, and the claimed_at of the attempt's row if it carried that.
    token_after  uuid,
    claimed_at   timestamptz,
    -- Why it failed, or the kind of the error that left the outcome unknown.
    code         text        CHECK (char_length(code) BETWEEN 1 AND 64),
    -- Of the request, where it is traced.
    trace_id     text        CHECK (char_length(trace_id) BETWEEN 1 AND 64),
    PRIMARY KEY (group_id, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);

-- append_trail: add a row to a trail, and return whether it could be added. Whatever goes wrong is
-- a warning in the server's log: the statement that reclaims, heals or fails goes on without the
-- row. It waits no longer than this for the table, which only an operator's statement locks:
-- followers have two connections for all keys.
CREATE FUNCTION append_trail_1(
    group_id uuid, happened_at timestamptz, what text, instance text, token_before uuid,
    token_after uuid, claimed_at timestamptz, code text, trace_id text
) RETURNS boolean
    LANGUAGE plpgsql
    SET lock_timeout = '10ms'
AS $$
BEGIN
    INSERT INTO attempt_trail (group_id, happened_at, what, instance, token_before, token_after,
                               claimed_at, code, trace_id)
    VALUES (group_id, happened_at, what, instance, token_before, token_after, claimed_at, code,
            trace_id);
    RETURN true;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'the trail of attempt % lacks "%": %', group_id, what, SQLERRM
        USING ERRCODE = SQLSTATE;
    RETURN false;
END
$$;

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
--
-- So the row of a deleted group stays, as a tombstone: its key never creates another group. The sweep
-- leaves one of each failed attempt: its key never creates a group at all (G4). A tombstone has
-- nothing but the id, times, the revision, and the failure's code.
CREATE TABLE chat_group (
    group_id        uuid        PRIMARY KEY,
    owner_id        text        CHECK (char_length(owner_id) BETWEEN 1 AND 128),
    name            text        CHECK (char_length(name) BETWEEN 1 AND 64),
    description     text        CHECK (char_length(description) <= 1024),
    -- What the host calls such a group, and what else it keeps of one: an object, in the order and
    -- spacing of jsonb, which may be twice as long as the form that was measured.
    group_kind      text        CHECK (char_length(group_kind) BETWEEN 1 AND 64),
    metadata        jsonb       CHECK (jsonb_typeof(metadata) = 'object'
                                       AND octet_length(metadata::text) <= 8192),
    -- Of the request that created the group, and kept as long: another body under the same key is
    -- still recognised when the attempt has been swept.
    fingerprint     bytea       CHECK (octet_length(fingerprint) = 16),
    conversation_id uuid        UNIQUE REFERENCES conversation ON DELETE CASCADE,
    -- Of a failed attempt's tombstone: when the attempt was settled.
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When a host has last changed the group or its members, and how many changes there have been.
    -- Each change writes both under the row's lock: a transaction whose snapshot is older fails, and
    -- does not decide by members that are not those any more.
    changed_at      timestamptz,
    revision        integer     NOT NULL DEFAULT 0,
    -- When the group was deleted: the tombstone of a group.
    deleted_at      timestamptz,
    -- Why the attempt has failed: the tombstone of an attempt.
    failure_code    text        CHECK (char_length(failure_code) BETWEEN 1 AND 64),

    -- A group is whole, and a tombstone is empty.
    CONSTRAINT chat_group_is_whole_or_empty CHECK (
        CASE WHEN deleted_at IS NULL AND failure_code IS NULL
             THEN owner_id IS NOT NULL AND name IS NOT NULL AND fingerprint IS NOT NULL
                  AND conversation_id IS NOT NULL
             ELSE num_nonnulls(deleted_at, failure_code) = 1
                  AND num_nonnulls(owner_id, name, description, group_kind, metadata, fingerprint,
                                   conversation_id) = 0 END)
);

-- A tombstone never changes again: the database refuses it for every client.
CREATE FUNCTION refuse_change_of_tombstone() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'the row of group % is a tombstone and cannot change', OLD.group_id
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER chat_group_tombstone_is_final
    BEFORE UPDATE ON chat_group
    FOR EACH ROW
    WHEN (OLD.deleted_at IS NOT NULL OR OLD.failure_code IS NOT NULL)
    EXECUTE FUNCTION refuse_change_of_tombstone();

-- conversation_member: the members of a conversation. One of them at least is an owner: at first the
-- one who has created the group. What an admin may do is the host's concern.
CREATE TABLE conversation_member (
    -- Of a conversation that exists: the triggers below see to that.
    conversation_id uuid        NOT NULL,
    user_id         text        NOT NULL CHECK (char_length(user_id) BETWEEN 1 AND 128),
    role            text        NOT NULL CHECK (role IN ('owner', 'admin', 'member')),
    joined_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (conversation_id, user_id)
);

-- "My groups, newest first": conversation ids grow with time.
CREATE INDEX conversation_member_by_user ON conversation_member (user_id, conversation_id);

-- Members belong to a conversation that exists, and go with it. A foreign key would say the same, but
-- PostgreSQL checks one row by row: with four members that took a sixth of its time for a creation.
-- These triggers check the rows of a statement together. They mean the tables of their own schema,
-- whatever it is called by now, the search_path of who writes leads to, and temporary tables there are.
CREATE FUNCTION require_conversations() RETURNS trigger
    LANGUAGE plpgsql
    -- Whatever is set within lasts as long as the function.
    SET search_path = pg_catalog, pg_temp
    -- As in claim_attempts.
    SET enable_seqscan = off
AS $$
DECLARE
    missing uuid;
    path text;
BEGIN
    path := set_config('search_path', quote_ident(TG_TABLE_SCHEMA) || ', pg_temp', true);
    -- A subquery, which is no join: it uses the index, whatever a plan expects of the tables.
    SELECT conversation_id INTO missing
    FROM (SELECT DISTINCT conversation_id FROM added) AS added
    WHERE (SELECT true FROM conversation
           WHERE conversation.conversation_id = added.conversation_id) IS NULL
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'conversation % does not exist, so it can have no members', missing
            USING ERRCODE = 'foreign_key_violation',
                  SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER conversation_member_has_conversation
    AFTER INSERT ON conversation_member
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION require_conversations();

CREATE FUNCTION delete_members() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
AS $$
DECLARE
    path text;
BEGIN
    path := set_config('search_path', quote_ident(TG_TABLE_SCHEMA) || ', pg_temp', true);
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM conversation_member;
    ELSE
        DELETE FROM conversation_member
        WHERE conversation_id = ANY (ARRAY(SELECT conversation_id FROM removed));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER conversation_takes_its_members_along
    AFTER DELETE ON conversation
    REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION delete_members();

CREATE TRIGGER conversation_takes_all_members_along
    AFTER TRUNCATE ON conversation
    FOR EACH STATEMENT EXECUTE FUNCTION delete_members();

CREATE FUNCTION refuse_other_conversation() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'conversation % keeps its id and its members', OLD.conversation_id
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER conversation_keeps_its_id
    BEFORE UPDATE OF conversation_id ON conversation
    FOR EACH ROW
    WHEN (OLD.conversation_id <> NEW.conversation_id)
    EXECUTE FUNCTION refuse_other_conversation();

CREATE TRIGGER conversation_member_stays
    BEFORE UPDATE OF conversation_id ON conversation_member
    FOR EACH ROW
    WHEN (OLD.conversation_id <> NEW.conversation_id)
    EXECUTE FUNCTION refuse_other_conversation();

-- outbox: the log of events, each committed together with the rows that it reports (G8). A row is
-- never updated or deleted: each reader keeps a place of its own. Whole partitions are truncated
-- when their events are older than the retention and every reader is past them.
--
-- It has no key: that a group has one event follows from the statement that writes both. Its one
-- index is the order in which it is read.
CREATE TABLE outbox (
    -- The partition; see outbox_slot.
    slot            smallint    NOT NULL,
    -- The order of the log: by history, then by the writing transaction. Unlike with a sequence, a
    -- reader can know which lower numbers may still come: those of the transactions that its
    -- snapshot lists as running.
    history         integer     NOT NULL,
    position        xid8        NOT NULL DEFAULT pg_current_xact_id(),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- However often an event is sent, it has one id. That of a creation follows from the
    -- conversation's; others are UUIDv7s.
    event_id        uuid        NOT NULL,
    -- What has happened; null for the creation of a group.
    event_type      text,
    -- The group, its conversation, its members with the owner first, its name, kind and metadata: the
    -- event's document follows from them.
    subject         uuid        NOT NULL,
    conversation_id uuid        NOT NULL,
    recipients      text[]      NOT NULL CHECK (cardinality(recipients) BETWEEN 1 AND 1001),
    group_name      text        NOT NULL,
    group_kind      text,
    metadata        jsonb,
    -- Of the request that has created the group, if it was sampled. It has no CHECK, which would
    -- refuse a group for its trace: the writer bounds it.
    trace_context   text,
    -- Of a change after the creation: the group's revision, its owner and how many members it has, and
    -- what else the event says. Its recipients are the members before and after it.
    change          jsonb
) PARTITION BY LIST (slot);

-- Eight slots of a seventh of the retention each: one that is written to, and seven that are kept.
-- Vacuum finds nothing to do in a table without updates.
CREATE TABLE outbox_0 PARTITION OF outbox FOR VALUES IN (0)
    WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES IN (1)
    WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES IN (2)
    WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES IN (3)
    WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE outbox_4 PARTITION OF outbox FOR VALUES IN (4)
    WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE outbox_5 PARTITION OF outbox FOR VALUES IN (5)
    WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE outbox_6 PARTITION OF outbox FOR VALUES IN (6)
    WITH (autovacuum_vacuum_insert_threshold = -1);
CREATE TABLE outbox_7 PARTITION OF outbox FOR VALUES IN (7)
    WITH (autovacuum_vacuum_insert_threshold = -1);

CREATE INDEX outbox_by_position ON outbox (history, position);

-- outbox_slot: which partition is written to, and since when: the one with the greatest number. An
-- empty one has the number 0. Times do not decide: a clock may go back. Each truncation empties
-- one partition. So the truncations are the greatest number less the partitions that are not empty.
CREATE TABLE outbox_slot (
    slot     smallint    PRIMARY KEY,
    number   bigint      NOT NULL DEFAULT 0 CHECK (number >= 0),
    began_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO outbox_slot (slot, number)
SELECT slot, (slot = 0)::integer FROM generate_series(0, 7) AS slot;

-- outbox_history: the stretches of transaction ids that nothing has interrupted. A standby that is
-- promoted, a server that is recovered to a point in time, and one whose files were put back give
-- out ids again; after a restore into another database, ids have no order with those of before. All
-- of these have another start of the server, or another table: the first write there begins a new
-- history, which comes after all older ones. So does a plain restart, without harm.
CREATE TABLE outbox_history (
    number            integer     PRIMARY KEY,
    -- Two copies of a database may both begin a history of this number.
    id                text        NOT NULL DEFAULT left(gen_random_uuid()::text, 8),
    server_started_at timestamptz NOT NULL,
    table_id          text        NOT NULL,
    -- Where it ends while it has no event.
    position          xid8        NOT NULL DEFAULT pg_current_xact_id(),
    began_at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- There is always a newest history. No event is in this one.
INSERT INTO outbox_history (number, server_started_at, table_id) VALUES (0, '-infinity', '');

-- outbox_server: identifies a server's start, and our tables in it.
CREATE VIEW outbox_server AS
SELECT pg_postmaster_start_time() AS started_at,
       concat_ws('/', (SELECT oid FROM pg_database WHERE datname = current_database()),
                 'outbox'::regclass::oid) AS table_id;

-- history_start: where the log begins: no event from here on was truncated. A client that asks for
-- an older one is refused.
CREATE TABLE history_start (
    is_only     boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    history     integer NOT NULL DEFAULT 0,
    position    xid8    NOT NULL DEFAULT '0',
    -- The transactions below it that were running at the last truncation: what is truncated has
    -- committed, so nothing of theirs was. What they commit later comes below the start. There are no
    -- more of them than the server has connections and prepared transactions.
    running     xid8[]  NOT NULL DEFAULT '{}',
    -- How many truncations there had been with that one. Instances of older versions truncate without
    -- a word of what is running: then the count of outbox_slot is another one, and `running` is void.
    truncations bigint  NOT NULL DEFAULT 0
);
INSERT INTO history_start DEFAULT VALUES;

-- outbox_present: the end of the log, behind its last visible event, and which transactions below
-- it may still commit. Every reader's place rests on it, and on no newer transaction id: the commit
-- of a visible event is flushed, but a crash of the server forgets asynchronous commits, and gives
-- their ids out again. Nor does it rest on a row whose position this server has not reached (`unreached`), as one
-- written by hand: everything up to there would count as read before it comes. No reader has it until then.
CREATE VIEW outbox_present AS
SELECT newest.number AS history, bound.next_position, below.running,
       format('%s:%s:%s', coalesce(below.running[1], bound.next_position), bound.next_position,
              array_to_string(below.running, ','))::pg_snapshot AS seen,
       -- The next event begins another history.
       newest.server_started_at <> pg_postmaster_start_time() AS is_ended,
       (SELECT json_object_agg(number, id) FROM outbox_history) AS histories,
       history_start.history AS start_history,
       history_start.position::text::bigint AS start_position,
       CASE WHEN history_start.truncations = (SELECT max(number) - count(nullif(number, 0))
                                              FROM outbox_slot)
            THEN history_start.running::text::bigint[] ELSE '{}' END AS start_running,
       -- It knows of no running transactions, so a place there would cover what nobody has read.
       pg_is_in_recovery() AS is_standby,
       server.unreached
FROM (SELECT * FROM outbox_history ORDER BY number DESC LIMIT 1) AS newest
CROSS JOIN history_start
-- OFFSET has each of them computed once.
CROSS JOIN LATERAL (
    SELECT CASE WHEN newest.server_started_at = pg_postmaster_start_time()
                THEN pg_snapshot_xmax(pg_current_snapshot())
                -- Its events have positions of another start, or of another server. No bigint is greater.
                ELSE '9223372036854775807' END AS unreached
    OFFSET 0
) AS server
CROSS JOIN LATERAL (
    SELECT greatest(
        newest.position::text::bigint,
        CASE WHEN history_start.history = newest.number
             THEN history_start.position::text::bigint END,
        (SELECT position::text::bigint + 1 FROM outbox
         WHERE outbox.history = newest.number AND outbox.position < server.unreached
         ORDER BY outbox.history DESC, outbox.position DESC LIMIT 1)) AS next_position
    OFFSET 0
) AS bound
CROSS JOIN LATERAL (
    SELECT ARRAY(SELECT xip::text::bigint FROM pg_snapshot_xip(pg_current_snapshot()) AS xip
                 WHERE xip::text::bigint < bound.next_position ORDER BY xip) AS running
    OFFSET 0
) AS below;

-- outbox_reader: how far the bus and the webhook are, and who moves them on.
CREATE TABLE outbox_reader (
    name          text        PRIMARY KEY CHECK (name IN ('bus', 'webhook')),
    -- It has had every event of older histories, and each of this one that this snapshot sees.
    -- Unlike a position, a snapshot lists the transactions that were still running, and waits for
    -- none.
    history       integer     NOT NULL,
    seen          pg_snapshot NOT NULL,
    -- What it has had of transactions that this does not see, each as history:position:mark:id of the
    -- last event that it has had: a large transaction takes more than one page. Mark is 1 for a change,
    -- 0 for a creation. Instances of older versions leave them behind, where `seen` has passed them.
    parts         text        NOT NULL DEFAULT '',
    -- The process that publishes to the bus; another one's writes change nothing.
    token         uuid,
    leased_until  timestamptz NOT NULL DEFAULT '-infinity',
    -- When a process has last served it: a reader that no process serves keeps no event from being
    -- swept.
    served_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- SHA-256 of the webhook's URL, which may contain a secret. If the instances' URLs differ, that
    -- of the one started last counts, and a sender to another URL changes nothing here. What an
    -- endpoint has asked for, a pause or no more events, ends when the URL changes.
    target_digest bytea       CHECK (length(target_digest) = 32),
    -- The end of a pause that the endpoint has asked for.
    paused_until  timestamptz NOT NULL DEFAULT '-infinity',
    -- When it asked for no more events (410); it stays disabled until an operator enables it.
    disabled_at   timestamptz,
    -- The reader has a clock of its own, so much ahead of the database's; due_at is on it. When the
    -- database's clock goes back, it goes further ahead. To send all that waits now, it goes to the
    -- last due time. So neither case updates a delivery, of which a million may wait.
    clock_ahead   interval    NOT NULL DEFAULT '0',
    -- Its clock when the present target came: what was put off until then is untried. Of two moves the later
    -- one has the greater time, so senders see by it that a failover has set the row back.
    target_since  timestamptz NOT NULL DEFAULT '-infinity'
) WITH (
    -- One row, updated with every batch: many versions fit on its page (HOT).
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0.02
);

-- outbox_delivery: events that a reader's target still has to get one by one, and dead letters:
-- what the bus has refused, and everything for the webhook's endpoint. A delivered event has no
-- row. Each is a copy, so that no partition of the log is kept for one.
CREATE TABLE outbox_delivery (
    reader          text        NOT NULL,
    -- When its event was committed: the oldest row shows how far the target is behind.
    created_at      timestamptz NOT NULL,
    event_id        uuid        NOT NULL,
    event_type      text,
    subject         uuid        NOT NULL,
    conversation_id uuid        NOT NULL,
    recipients      text[]      NOT NULL,
    group_name      text        NOT NULL,
    group_kind      text,
    metadata        jsonb,
    -- When it may be taken next, by its reader's clock: taking postpones it by the lease, a failure by
    -- a pause.
    due_at          timestamptz NOT NULL,
    tries           integer     NOT NULL DEFAULT 0 CHECK (tries >= 0),
    -- Why it is a dead letter, which is not tried again until an operator retries it.
    dead_reason     text        CHECK (char_length(dead_reason) BETWEEN 1 AND 1024),
    trace_context   text,
    change          jsonb,
    -- The group's owner. Owners take turns; what an instance of an older version enrols is of none, and
    -- all of that counts as one owner's.
    owner_id        text        NOT NULL DEFAULT '',
    -- Whether it was due when its row was last written. What is taken or put off is not, and gets the mark
    -- once its time has come and it is not taken at once. An instance of an older version leaves it as it is.
    is_due          boolean     NOT NULL DEFAULT true,
    PRIMARY KEY (reader, event_id)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);

CREATE INDEX outbox_delivery_due ON outbox_delivery (reader, due_at) WHERE dead_reason IS NULL;

-- For instances of older versions alone, which walk on it.
CREATE INDEX outbox_delivery_by_owner ON outbox_delivery (reader, owner_id, due_at)
    WHERE dead_reason IS NULL;

-- From an owner with something due to the next, to the earliest of each. The event's id makes an order that
-- no other index has: none that holds what is put off, too, is read instead.
CREATE INDEX outbox_delivery_walk ON outbox_delivery (reader, owner_id, due_at, event_id)
    WHERE is_due AND dead_reason IS NULL;

-- What becomes due by the time, behind however much that is marked.
CREATE INDEX outbox_delivery_unmarked ON outbox_delivery (reader, due_at, event_id)
    WHERE NOT is_due AND dead_reason IS NULL;

CREATE INDEX outbox_delivery_owed ON outbox_delivery (reader, created_at)
    WHERE dead_reason IS NULL;

-- Claim and lead: how a group is written. They are routines so that a writer has both done in one
-- round trip. Each runs with the rights and the search_path of its caller, as a statement that the
-- caller sends. The number is the version: a routine never changes. One that does something else gets
-- another number beside the old, so that instances of both versions run side by side.

-- require_home: return `value`, if each table with which groups are written, read and deleted is found in the
-- schema `home` from here, or if that is null. Else fail, which is no refusal of a row. Another schema that
-- the search_path names first may get a table of such a name at any time, such as a host's own conversation:
-- then rows of one group would go to two schemas. A statement calls it by its full name, so that none of
-- another schema answers instead.
CREATE FUNCTION require_home_1(home text, value text) RETURNS text
    LANGUAGE plpgsql
    STABLE
AS $$
BEGIN
    IF home IS NULL
       OR pg_table_is_visible(to_regclass(home || '.attempt'))
          AND pg_table_is_visible(to_regclass(home || '.chat_group'))
          AND pg_table_is_visible(to_regclass(home || '.conversation'))
          AND pg_table_is_visible(to_regclass(home || '.conversation_member'))
          AND pg_table_is_visible(to_regclass(home || '.history_start'))
          AND pg_table_is_visible(to_regclass(home || '.outbox'))
          AND pg_table_is_visible(to_regclass(home || '.outbox_history'))
          AND pg_table_is_visible(to_regclass(home || '.outbox_present'))
          AND pg_table_is_visible(to_regclass(home || '.outbox_server'))
          AND pg_table_is_visible(to_regclass(home || '.outbox_slot')) THEN
        RETURN value;
    END IF;
    RAISE EXCEPTION 'the session leads to tables of another schema than %', home
        USING ERRCODE = 'invalid_schema_name';
END
$$;

-- require_all_rows: return true if no policies hide rows of these tables from the role; else fail. Upkeep
-- would take what is hidden for what is lost, or has never been.
CREATE FUNCTION require_all_rows_1(VARIADIC tables text[]) RETURNS boolean
    LANGUAGE plpgsql
    STABLE
AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY tables LOOP
        IF row_security_active(name) THEN
            RAISE EXCEPTION 'row-level security applies to %', name
                USING ERRCODE = 'insufficient_privilege';
        END IF;
    END LOOP;
    RETURN true;
END
$$;

-- require_whole_log: return true if each slot of the log has its partition attached; else fail. The events of
-- one that is detached are as if they were swept, and the next event of its slot has no place.
CREATE FUNCTION require_whole_log_1() RETURNS boolean
    LANGUAGE plpgsql
    STABLE
AS $$
DECLARE
    detached text;
BEGIN
    SELECT string_agg('outbox_' || slot::text, ', ' ORDER BY slot) INTO detached
    FROM outbox_slot
    WHERE NOT EXISTS (SELECT FROM pg_inherits
                      WHERE inhrelid = to_regclass('outbox_' || slot::text)
                        AND inhparent = 'outbox'::regclass
                        -- One that is being detached concurrently is left out of new plans.
                        AND NOT inhdetachpending);
    IF detached IS NULL THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'detached from outbox: %; "stretto check" says what to run', detached
        USING ERRCODE = 'object_not_in_prerequisite_state';
END
$$;

-- plan_whole_log: the same, when a statement is planned: said to be immutable, it is called then. A plan may be made
-- while a partition is detached, and run once it is attached again, which waits for no statement. A plan that is
-- kept ends with either.
CREATE FUNCTION plan_whole_log_1() RETURNS boolean
    LANGUAGE plpgsql
    IMMUTABLE
AS $$
BEGIN
    RETURN require_whole_log_1();
END
$$;

-- claim_attempts: insert the pending attempts of a batch and return the tokens that won. Commits
-- without waiting for the disk: the leader's settle notices a claim that was lost in a crash. A key
-- whose group exists is not claimed, so that a request that is refused as a reuse leaves no attempt.
-- Nor is a key whose attempt exists: the insert would wait for the leader that is writing it. It may
-- only wait for a claim that commits at this moment, and no longer than `patience`.
CREATE FUNCTION claim_attempts_1(
    group_ids uuid[], owner_ids text[], fingerprints bytea[], claim_tokens uuid[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
    -- Rows are found by index: a pooler's sessions lack our settings, and a plan that was made while a
    -- table was small would scan it ever after. Any values have the same plan: a creation alone would
    -- be planned anew each time, which took a third of its time. Not for the session: then
    -- pg_stat_statements counts only its first CALL.
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    won uuid[];
    -- Of the session.
    path text := current_setting('search_path');
    acting text := current_setting('role');
    durability text := current_setting('synchronous_commit');
    messages text := current_setting('client_min_messages');
BEGIN
    -- Assigned, which runs no query: PERFORM would.
    patience := set_config('lock_timeout', patience, true);
    patience := set_config('synchronous_commit', 'off', true);
    WITH claimed AS (
        INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
        SELECT claim.group_id, claim.owner_id, claim.fingerprint, claim.claim_token
        FROM unnest(group_ids, owner_ids, fingerprints, claim_tokens)
            AS claim (group_id, owner_id, fingerprint, claim_token)
        WHERE NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = claim.group_id)
          AND NOT EXISTS (SELECT FROM attempt WHERE attempt.group_id = claim.group_id)
        ON CONFLICT DO NOTHING
        RETURNING claim_token
    )
    SELECT array_agg(claim_token) INTO won FROM claimed;
    -- What triggers have deferred to the commit runs now, or its settings would hold at the commit.
    SET CONSTRAINTS ALL IMMEDIATE;
    -- A SET in a trigger of the operator's would stay in the session, lead what comes next to other tables,
    -- loosen its commit, and hide that the standby lacks it.
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> 'off'
       OR current_setting('client_min_messages') <> messages THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        durability := set_config('synchronous_commit', durability, false);
        durability := set_config('synchronous_commit', 'off', true);
        messages := set_config('client_min_messages', messages, false);
    END IF;
    RETURN won;
END
$$;

-- lead_groups: settle the attempts that still carry our token, write their groups, and return the
-- tokens that did, in one commit. The update is the fence, the row lock and the settlement at once;
-- everything else is joined to the rows that it returned. No lock is waited for longer than
-- `patience`, until the transaction ends. If a trigger of the operator's drops a row, by returning
-- NULL, the whole lead fails: a group is never half made. (A conversation that is dropped violates a
-- foreign key.)
CREATE FUNCTION lead_groups_4(
    group_ids uuid[], claim_tokens uuid[], conversation_ids uuid[], names text[],
    descriptions text[], recipients_of text[], event_ids uuid[], trace_contexts text[],
    kinds text[], metadata_of text[], admin_counts integer[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    led uuid[];
    is_whole boolean;
    present record;
    path text := current_setting('search_path');
    acting text := current_setting('role');
    usual text := current_setting('synchronous_commit');
    durability text;
    messages text := current_setting('client_min_messages');
BEGIN
    -- What is acknowledged is flushed, whatever the server's or the role's setting is: a reload changes
    -- living sessions, even between a statement and its commit, but not what was set for a transaction.
    patience := set_config('lock_timeout', patience, true);
    durability := set_config('synchronous_commit', coalesce(nullif(usual, 'off'), 'on'), true);
    -- Where events go. A pooler may have changed to a promoted server under a living connection.
    SELECT (SELECT slot FROM outbox_slot ORDER BY outbox_slot.number DESC LIMIT 1) AS slot,
           history.number, history.server_started_at INTO present
    FROM outbox_history AS history ORDER BY history.number DESC LIMIT 1;
    IF present.server_started_at <> pg_postmaster_start_time() THEN
        INSERT INTO outbox_history (number, server_started_at, table_id)
        SELECT present.number + 1, started_at, table_id FROM outbox_server
        -- Another lead may have begun it meanwhile.
        ON CONFLICT (number) DO UPDATE SET number = EXCLUDED.number
        RETURNING number INTO present.number;
    END IF;
    WITH write AS (
        SELECT group_id, claim_token, conversation_id, name, description, recipients::text[],
               event_id, trace_context, kind, metadata::jsonb, admins
        -- An array that is null counts as one of nulls.
        FROM unnest(group_ids, claim_tokens, conversation_ids, names, descriptions, recipients_of,
                    event_ids, trace_contexts, kinds, metadata_of, admin_counts)
            AS write (group_id, claim_token, conversation_id, name, description, recipients,
                      event_id, trace_context, kind, metadata, admins)
    ), settled AS (
        UPDATE attempt
        SET status = 'succeeded', conversation_id = write.conversation_id,
            settled_at = clock_timestamp()
        FROM write
        WHERE attempt.group_id = write.group_id
          AND attempt.claim_token = write.claim_token
          AND attempt.status = 'pending'
          -- A group whose attempt was swept must not fail the batch: that key heals.
          AND NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = write.group_id)
        RETURNING attempt.owner_id, attempt.fingerprint, write.*
    ), new_conversation AS (
        INSERT INTO conversation (conversation_id) SELECT conversation_id FROM settled
    ), new_group AS (
        INSERT INTO chat_group (group_id, owner_id, name, description, group_kind, metadata,
                                fingerprint, conversation_id)
        SELECT group_id, owner_id, name, description, kind, metadata, fingerprint, conversation_id
        FROM settled
        RETURNING true
    ), new_member AS (
        INSERT INTO conversation_member (conversation_id, user_id, role)
        SELECT conversation_id, user_id,
               CASE WHEN user_id = owner_id THEN 'owner'
                    WHEN place <= admins + 1 THEN 'admin' ELSE 'member' END
        -- Admins stand right behind the owner. Both columns are made row by row: a function in FROM
        -- would first write all of its rows to a store.
        FROM (SELECT conversation_id, owner_id, admins, unnest(recipients) AS user_id,
                     generate_series(1, cardinality(recipients)) AS place
              FROM settled) AS recipient
        RETURNING true
    ), new_event AS (
        INSERT INTO outbox (slot, history, event_id, subject, conversation_id, recipients,
                            group_name, group_kind, metadata, trace_context)
        SELECT present.slot, present.number, event_id, group_id, conversation_id, recipients, name,
               kind, metadata, trace_context
        FROM settled
        RETURNING true
    )
    SELECT array_agg(claim_token),
           count(*) = (SELECT count(*) FROM new_group)
               AND count(*) = (SELECT count(*) FROM new_event)
               AND coalesce(sum(cardinality(recipients)), 0) = (SELECT count(*) FROM new_member)
    INTO led, is_whole FROM settled;
    -- As in claim_attempts; and a SET LOCAL would loosen this commit. What is deferred waits for a host's hook.
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> durability
       OR current_setting('client_min_messages') <> messages THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        usual := set_config('synchronous_commit', usual, false);
        durability := set_config('synchronous_commit', durability, true);
        messages := set_config('client_min_messages', messages, false);
    END IF;
    -- An attempt that could be led and was not is a dropped row as well. A condition of its own: one that
    -- holds a query is run as a query even where its first half decides.
    IF is_whole AND coalesce(cardinality(led), 0) < cardinality(group_ids) THEN
        is_whole := NOT EXISTS (
            SELECT FROM unnest(group_ids, claim_tokens) AS write (group_id, claim_token)
                JOIN attempt USING (group_id, claim_token)
            WHERE attempt.status = 'pending'
              AND NOT EXISTS (SELECT FROM chat_group
                              WHERE chat_group.group_id = attempt.group_id));
    END IF;
    IF NOT is_whole THEN
        RAISE EXCEPTION 'a trigger has dropped a row of stretto''s tables: it must return NEW'
            USING ERRCODE = 'trigger_protocol_violated';
    END IF;
    RETURN led;
END
$$;

-- lead_groups_at_once: lead_groups as a transaction of its own, in which no hook runs: what triggers have
-- deferred to its end is a part of it. Each routine sets back by itself: one for all would be looked up in the
-- search_path that a trigger has set.
CREATE FUNCTION lead_groups_at_once_1(
    group_ids uuid[], claim_tokens uuid[], conversation_ids uuid[], names text[],
    descriptions text[], recipients_of text[], event_ids uuid[], trace_contexts text[],
    kinds text[], metadata_of text[], admin_counts integer[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
AS $$
DECLARE
    led uuid[];
    path text := current_setting('search_path');
    acting text := current_setting('role');
    usual text := current_setting('synchronous_commit');
    durability text := coalesce(nullif(usual, 'off'), 'on');
    messages text := current_setting('client_min_messages');
BEGIN
    led := lead_groups_4(group_ids, claim_tokens, conversation_ids, names, descriptions,
                         recipients_of, event_ids, trace_contexts, kinds, metadata_of,
                         admin_counts, patience);
    -- As in claim_attempts.
    SET CONSTRAINTS ALL IMMEDIATE;
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> durability
       OR current_setting('client_min_messages') <> messages THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        usual := set_config('synchronous_commit', usual, false);
        durability := set_config('synchronous_commit', durability, true);
        messages := set_config('client_min_messages', messages, false);
    END IF;
    RETURN led;
END
$$;

-- claim_and_lead: claim a batch, commit, then lead what was won: pending is visible in between, and
-- the two commits are those of two statements. The lead needs nothing that the claim returns: its
-- fence leaves out what was not won. An error of the lead leaves the claims committed. It must be
-- called outside a transaction, where it may commit.
CREATE PROCEDURE claim_and_lead_4(
    group_ids uuid[], owner_ids text[], fingerprints bytea[], claim_tokens uuid[],
    claim_patience text, conversation_ids uuid[], names text[], descriptions text[],
    recipients_of text[], event_ids uuid[], trace_contexts text[], kinds text[],
    metadata_of text[], admin_counts integer[], lead_patience text,
    INOUT led uuid[]
)
    LANGUAGE plpgsql
AS $$
BEGIN
    led := claim_attempts_1(group_ids, owner_ids, fingerprints, claim_tokens, claim_patience);
    COMMIT;
    led := lead_groups_at_once_1(group_ids, claim_tokens, conversation_ids, names, descriptions,
                                 recipients_of, event_ids, trace_contexts, kinds, metadata_of,
                                 admin_counts, lead_patience);
END
$$;

-- What instances of older versions call. _3 is the same as _4; _2 has no kinds, metadata and
-- admins; _1 has no traces either. A later migration drops them.
CREATE FUNCTION lead_groups_3(
    group_ids uuid[], claim_tokens uuid[], conversation_ids uuid[], names text[],
    descriptions text[], recipients_of text[], event_ids uuid[], trace_contexts text[],
    kinds text[], metadata_of text[], admin_counts integer[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
AS $$
BEGIN
    RETURN lead_groups_4(group_ids, claim_tokens, conversation_ids, names, descriptions,
                         recipients_of, event_ids, trace_contexts, kinds, metadata_of,
                         admin_counts, patience);
END
$$;

CREATE PROCEDURE claim_and_lead_3(
    group_ids uuid[], owner_ids text[], fingerprints bytea[], claim_tokens uuid[],
    claim_patience text, conversation_ids uuid[], names text[], descriptions text[],
    recipients_of text[], event_ids uuid[], trace_contexts text[], kinds text[],
    metadata_of text[], admin_counts integer[], lead_patience text,
    INOUT led uuid[]
)
    LANGUAGE plpgsql
AS $$
BEGIN
    CALL claim_and_lead_4(group_ids, owner_ids, fingerprints, claim_tokens, claim_patience,
                          conversation_ids, names, descriptions, recipients_of, event_ids,
                          trace_contexts, kinds, metadata_of, admin_counts, lead_patience, led);
END
$$;

CREATE FUNCTION lead_groups_2(
    group_ids uuid[], claim_tokens uuid[], conversation_ids uuid[], names text[],
    descriptions text[], recipients_of text[], event_ids uuid[], trace_contexts text[],
    patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
AS $$
BEGIN
    RETURN lead_groups_3(group_ids, claim_tokens, conversation_ids, names, descriptions,
                         recipients_of, event_ids, trace_contexts, NULL, NULL, NULL, patience);
END
$$;

CREATE PROCEDURE claim_and_lead_2(
    group_ids uuid[], owner_ids text[], fingerprints bytea[], claim_tokens uuid[],
    claim_patience text, conversation_ids uuid[], names text[], descriptions text[],
    recipients_of text[], event_ids uuid[], trace_contexts text[], lead_patience text,
    INOUT led uuid[]
)
    LANGUAGE plpgsql
AS $$
BEGIN
    CALL claim_and_lead_3(group_ids, owner_ids, fingerprints, claim_tokens, claim_patience,
                          conversation_ids, names, descriptions, recipients_of, event_ids,
                          trace_contexts, NULL, NULL, NULL, lead_patience, led);
END
$$;

CREATE FUNCTION lead_groups_1(
    group_ids uuid[], claim_tokens uuid[], conversation_ids uuid[], names text[],
    descriptions text[], recipients_of text[], event_ids uuid[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
AS $$
BEGIN
    RETURN lead_groups_2(group_ids, claim_tokens, conversation_ids, names, descriptions,
                         recipients_of, event_ids, NULL, patience);
END
$$;

CREATE PROCEDURE claim_and_lead_1(
    group_ids uuid[], owner_ids text[], fingerprints bytea[], claim_tokens uuid[],
    claim_patience text, conversation_ids uuid[], names text[], descriptions text[],
    recipients_of text[], event_ids uuid[], lead_patience text,
    INOUT led uuid[]
)
    LANGUAGE plpgsql
AS $$
BEGIN
    CALL claim_and_lead_2(group_ids, owner_ids, fingerprints, claim_tokens, claim_patience,
                          conversation_ids, names, descriptions, recipients_of, event_ids, NULL,
                          lead_patience, led);
END
$$;

-- present_history: return the history that a change of a group is written to: the newest one. If the
-- server was started since it began, the change fails, and its transaction may be repeated. A change never
-- begins a history: the new row would stay locked until a host's transaction ends, and every writer that
-- connects or leads would wait for it.
CREATE FUNCTION present_history_1() RETURNS integer
    LANGUAGE plpgsql
AS $$
DECLARE
    newest record;
BEGIN
    SELECT number, server_started_at INTO newest
    FROM outbox_history ORDER BY number DESC LIMIT 1;
    IF newest.server_started_at <> pg_postmaster_start_time() THEN
        RAISE EXCEPTION 'no history of events has begun since the start of the server'
            USING ERRCODE = 'serialization_failure',
                  HINT = 'Repeat the transaction: each running component begins one within a second.';
    END IF;
    RETURN newest.number;
END
$$;

-- delete_group: empty the row of a group, which stays as a tombstone, delete all else of it, and add
-- the event, in the caller's transaction. Return true; false if it was deleted before; null if there
-- is no such group, or `owner` is not an owner of it. Without an `owner`, anyone's group is deleted.
--
-- It locks the group's row first, as every change of a group does. What is read then, in further
-- statements, has the changes that the lock has waited for. Attempts are metadata: one that a writer or a
-- follower holds is left to the sweep. The conversation takes its members along.
CREATE FUNCTION delete_group_1(id uuid, owner text, new_event_id uuid, trace text) RETURNS boolean
    LANGUAGE plpgsql
    -- As in claim_attempts.
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    doomed record;
    is_whole boolean;
    path text := current_setting('search_path');
    acting text := current_setting('role');
    durability text := current_setting('synchronous_commit');
BEGIN
    SELECT * INTO doomed FROM chat_group
    WHERE group_id = id AND (owner IS NULL OR EXISTS (
        SELECT FROM conversation_member AS member
        WHERE member.conversation_id = chat_group.conversation_id
          AND member.user_id = owner AND member.role = 'owner'))
    FOR UPDATE;
    IF NOT FOUND OR doomed.conversation_id IS NULL THEN
        -- This too is reported only after a synchronous standby has it, as in look.
        IF current_setting('synchronous_standby_names') <> '' THEN
            PERFORM pg_logical_emit_message(true, 'stretto', '');
        END IF;
        RETURN (SELECT false FROM chat_group WHERE group_id = id AND deleted_at IS NOT NULL);
    END IF;
    -- Once more: a change that the lock has waited for may have made others owners.
    PERFORM FROM conversation_member
    WHERE conversation_id = doomed.conversation_id AND user_id = owner AND role = 'owner';
    IF owner IS NOT NULL AND NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO outbox (slot, history, event_id, subject, conversation_id, recipients, group_name,
                        group_kind, metadata, trace_context, event_type, change)
    SELECT (SELECT slot FROM outbox_slot ORDER BY number DESC LIMIT 1), present_history_1(),
           new_event_id, id, doomed.conversation_id, users, doomed.name,
           doomed.group_kind, doomed.metadata, trace, 'group.deleted',
           jsonb_build_object('revision', doomed.revision + 1, 'owner_id', doomed.owner_id,
                              'members_count', cardinality(users))
    FROM (SELECT ARRAY(SELECT user_id FROM conversation_member
                       WHERE conversation_id = doomed.conversation_id
                       ORDER BY user_id)) AS members (users);
    is_whole := FOUND;
    UPDATE chat_group
    SET owner_id = NULL, name = NULL, description = NULL, group_kind = NULL, metadata = NULL,
        fingerprint = NULL, conversation_id = NULL, deleted_at = clock_timestamp(),
        changed_at = NULL, revision = doomed.revision + 1
    WHERE group_id = id;
    is_whole := is_whole AND FOUND;
    -- Behind the update, or its foreign key would take the group's row along.
    DELETE FROM conversation WHERE conversation_id = doomed.conversation_id;
    is_whole := is_whole AND FOUND;
    DELETE FROM attempt
    WHERE group_id IN (SELECT group_id FROM attempt WHERE group_id = id FOR UPDATE SKIP LOCKED);
    IF NOT is_whole THEN
        RAISE EXCEPTION 'a trigger has dropped a change of stretto''s tables, or led it to others by a SET: it'
                        ' must return its row, and its function needs a SET clause instead'
            USING ERRCODE = 'trigger_protocol_violated';
    END IF;
    -- As in claim_attempts.
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> durability THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        durability := set_config('synchronous_commit', durability, false);
    END IF;
    -- Readers of the log take the commit of a visible event for one that a crash does not undo.
    durability := set_config('synchronous_commit', coalesce(nullif(durability, 'off'), 'on'), true);
    RETURN true;
END
$$;

-- delete_group_at_once: delete_group as a transaction of its own, as lead_groups_at_once is.
CREATE FUNCTION delete_group_at_once_1(id uuid, owner text, new_event_id uuid, trace text)
    RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    is_deleted boolean;
    path text := current_setting('search_path');
    acting text := current_setting('role');
    usual text := current_setting('synchronous_commit');
    durability text := coalesce(nullif(usual, 'off'), 'on');
    messages text := current_setting('client_min_messages');
BEGIN
    is_deleted := delete_group_1(id, owner, new_event_id, trace);
    IF is_deleted IS NOT TRUE THEN
        RETURN is_deleted;
    END IF;
    -- As in claim_attempts.
    SET CONSTRAINTS ALL IMMEDIATE;
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> durability
       OR current_setting('client_min_messages') <> messages THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        usual := set_config('synchronous_commit', usual, false);
        durability := set_config('synchronous_commit', durability, true);
        messages := set_config('client_min_messages', messages, false);
    END IF;
    RETURN true;
END
$$;

-- deleted_groups: return the groups whose deletion a place (history, end, running) does not cover, up
-- to a limit. A routine for its settings: a plan for any place would scan the whole log.
CREATE FUNCTION deleted_groups_1(
    in_history integer, from_position xid8, running xid8[], groups_max integer
) RETURNS uuid[]
    LANGUAGE sql
    STABLE
    SET enable_seqscan = off
    SET jit = off
AS $$
SELECT ARRAY(
    SELECT subject FROM (
        SELECT subject, event_type FROM outbox
        WHERE history = in_history AND position = ANY (running)
        UNION ALL
        SELECT subject, event_type FROM outbox
        WHERE (history, position) >= (in_history, from_position)) AS event
    WHERE event_type = 'group.deleted' LIMIT groups_max)
$$;

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
    number      integer     PRIMARY KEY,
    checksum    text        NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Instances that are made for an older version than this do not start any more.
    serves_from integer     NOT NULL DEFAULT 7,
    -- Where the last batch of the back-fill to the next version has ended; null while there is none.
    filled_to   text,
    filled_rows bigint      NOT NULL DEFAULT 0
);
