-- How the leader's transaction around a host's hook ends.

-- name: commit_durably
-- Have this transaction's commit wait for the disk as $1 says, and the server send its messages from $2 on,
-- whatever a host's hook has set: an outcome is reported only when it is durable.
SELECT set_config('synchronous_commit', $1, true), set_config('client_min_messages', $2, true);

-- name: transaction_status
-- Read how the transaction $1 has ended.
SELECT pg_xact_status($1::text::xid8);

-- name: rollback_prepared
-- Return the statement that rolls the prepared transaction $1 back; no row if it is none.
SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts
WHERE transaction = $1::text::xid8::xid AND database = current_database();

-- name: unlock_session
-- Release the advisory locks that a host's hook has taken in a session that is not ours.
SELECT pg_advisory_unlock_all();
