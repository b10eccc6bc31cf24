-- What a consumer has dealt with.

-- name: first_time
-- Record that a consumer deals with a message; returns nothing where it has done so already. Waits
-- for another transaction that is dealing with the same one.
INSERT INTO inbox (consumer, message_id) VALUES ($1, $2)
ON CONFLICT DO NOTHING
RETURNING message_id;
