-- A transaction of statements over whole tables.

-- name: lock_log
-- Have no partition of the log be detached from here on, before there is a snapshot: in that one it could still
-- be attached, while plans leave it out.
LOCK TABLE outbox IN ACCESS SHARE MODE;

-- name: allow_scans
-- Let the rest of the transaction scan whole tables, and join them by hash or merge: plans by index suit
-- a single key only. Not by loops: where statistics are missing or wrong, or a LIMIT seems to be near,
-- the planner would read one whole table for each row of another.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true),
       set_config('enable_mergejoin', 'on', true), set_config('enable_nestloop', 'off', true);

-- name: watch_client
-- Have the server end the rest of the transaction within $1 once the client is gone.
SELECT set_config('client_connection_check_interval', $1, true);
