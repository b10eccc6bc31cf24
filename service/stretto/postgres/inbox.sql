-- The messages that a consumer has processed. `inbox` is replaced by the table of the schema that
-- the consumer names, if it names one.

-- name: first_time
-- Record that a consumer processes a message; returns nothing where that is recorded already. Waits
-- for another transaction that is processing the same message.
INSERT INTO inbox (consumer, message_id) VALUES ($1, $2)
ON CONFLICT DO NOTHING
RETURNING message_id;

-- name: has_inbox
-- Whether the table $1 is there. Waits for another transaction that is creating it: of two that do
-- so at once, one would fail.
SELECT to_regclass($1) IS NOT NULL
FROM pg_advisory_xact_lock(hashtextextended('stretto.inbox', 0));

-- name: create_inbox
-- As in schema.sql. What has_inbox sees may be as old as the beginning of its wait.
CREATE TABLE IF NOT EXISTS inbox (
    consumer    text        NOT NULL CHECK (char_length(consumer) BETWEEN 1 AND 128),
    message_id  uuid        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, message_id)
);

-- name: forget_messages
-- Delete at most $3 records of messages that a consumer processed more than $2 days ago; return how
-- many there were. No index leads to them, so the table is read until they are found, the oldest
-- usually first. An array is looked up by the primary key; IN would read the whole table once more.
WITH forgotten AS (
    DELETE FROM inbox
    WHERE consumer = $1 AND message_id = ANY (ARRAY(
        SELECT message_id FROM inbox
        WHERE consumer = $1 AND received_at < clock_timestamp() - make_interval(days => $2)
        LIMIT $3
    ))
    RETURNING true
)
SELECT count(*) FROM forgotten;
