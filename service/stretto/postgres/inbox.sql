-- The messages that a consumer has processed.

-- name: first_time
-- Record that a consumer processes a message; returns nothing where that is recorded already. Waits
-- for another transaction that is processing the same message.
INSERT INTO inbox (consumer, message_id) VALUES ($1, $2)
ON CONFLICT DO NOTHING
RETURNING message_id;
