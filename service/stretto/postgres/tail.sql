-- Announcements of new events, from process to process.

-- name: announcements
-- Read the channel of these tables' announcements: deployments may share a database.
SELECT 'stretto.' || table_id FROM outbox_server;

-- name: announce
-- Announce new events to other processes; $1 marks ours. Needs no durability: a process that misses
-- it looks within a second. Never in the transaction that writes: notifying takes one lock of the
-- whole server until the commit.
SELECT pg_notify('stretto.' || table_id, $1)
FROM outbox_server, set_config('synchronous_commit', 'off', true);
