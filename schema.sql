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

-- Claim and lead: how a group is written. They are routines so that a writer has both done in one
-- round trip. Each runs with the rights and the search_path of its caller, as a statement that the
-- caller sends. The number is the version: a routine never changes. One that does something else gets
-- another number beside the old, so that instances of both versions run side by side.

-- claim_attempts: insert the pending attempts of a batch and return the tokens that won. Commits
-- without waiting for the disk: the leader's settle notices a claim that was lost in a crash. A key
-- whose group exists is not claimed, so that a request that is refused as a reuse leaves no attempt.
-- Nor is a key whose attempt exists: the insert would wait for the leader that is writing it. It may
-- only wait for a claim that commits at this moment, and no longer than `patience`.
CREATE FUNCTION claim_attempts_1(
    group_ids uuid[], owner_ids text[], fingerprints bytea[], claim_tokens uuid[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
AS $$
DECLARE
    won uuid[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true),
            set_config('lock_timeout', patience, true);
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
    RETURN won;
END
$$;

-- lead_groups: settle the attempts that still carry our token, write their groups, and return the
-- tokens that did, in one commit. The update is the fence, the row lock and the settlement at once;
-- everything else is joined to the rows that it returned. No lock is waited for longer than
-- `patience`, until the transaction ends.
CREATE FUNCTION lead_groups_1(
    group_ids uuid[], claim_tokens uuid[], conversation_ids uuid[], names text[],
    descriptions text[], recipients_of text[], event_ids uuid[], payloads text[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
AS $$
DECLARE
    led uuid[];
BEGIN
    PERFORM set_config('lock_timeout', patience, true);
    WITH write AS (
        SELECT group_id, claim_token, conversation_id, name, description, recipients::text[],
               event_id, payload::json
        FROM unnest(group_ids, claim_tokens, conversation_ids, names, descriptions, recipients_of,
                    event_ids, payloads)
            AS write (group_id, claim_token, conversation_id, name, description, recipients,
                      event_id, payload)
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
        INSERT INTO chat_group (group_id, owner_id, name, description, fingerprint,
                                conversation_id)
        SELECT group_id, owner_id, name, description, fingerprint, conversation_id FROM settled
    ), new_member AS (
        INSERT INTO conversation_member (conversation_id, user_id, role)
        SELECT conversation_id, user_id,
               CASE WHEN user_id = owner_id THEN 'owner' ELSE 'member' END
        FROM settled, unnest(recipients) AS user_id
    ), new_event AS (
        INSERT INTO outbox (event_id, event_type, subject, recipients, payload)
        SELECT event_id, 'group.created', group_id, recipients, payload FROM settled
    )
    SELECT array_agg(claim_token) INTO led FROM settled;
    RETURN led;
END
$$;

-- claim_and_lead: claim a batch, commit, then lead what was won: pending is visible in between, and
-- the two commits are those of two statements. The lead needs nothing that the claim returns: its
-- fence leaves out what was not won. An error of the lead leaves the claims committed. It must be
-- called outside a transaction, where it may commit.
CREATE PROCEDURE claim_and_lead_1(
    group_ids uuid[], owner_ids text[], fingerprints bytea[], claim_tokens uuid[],
    claim_patience text, conversation_ids uuid[], names text[], descriptions text[],
    recipients_of text[], event_ids uuid[], payloads text[], lead_patience text,
    INOUT led uuid[]
)
    LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM claim_attempts_1(group_ids, owner_ids, fingerprints, claim_tokens, claim_patience);
    COMMIT;
    led := lead_groups_1(group_ids, claim_tokens, conversation_ids, names, descriptions,
                         recipients_of, event_ids, payloads, lead_patience);
END
$$;

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
