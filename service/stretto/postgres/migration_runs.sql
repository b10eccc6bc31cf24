-- How the steps of a migration run, one runner at a time.

-- name: begin_migrating
-- Take the lock $1 of migrations until the transaction ends; return whether it was free.
SELECT pg_try_advisory_xact_lock($1);

-- name: begin_migrating_session
-- Take the same lock until it is given back, or the session ends; return whether it was free.
SELECT pg_try_advisory_lock($1);

-- name: is_migrating
-- Find out whether a session of this database holds that lock.
SELECT EXISTS (SELECT FROM pg_locks
               WHERE locktype = 'advisory' AND granted AND objsubid = 1
                 AND classid::bigint << 32 | objid::bigint = $1
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()));

-- name: end_migrating_session
-- Give the lock of the session back.
SELECT pg_advisory_unlock($1);

-- name: migrating_backend
-- Read which process of the server the connection leads to.
SELECT pg_backend_pid();

-- name: migrating_session
-- Read what `set_migrating_session` changes.
SELECT current_setting('search_path'), current_setting('lock_timeout'),
       current_setting('statement_timeout');

-- name: set_migrating_session
-- Have the session look for tables in $1, and wait for locks and statements for $2 and $3.
SELECT set_config('search_path', $1, false), set_config('lock_timeout', $2, false),
       set_config('statement_timeout', $3, false);

-- name: index_state
-- Find out whether the index $1 can be used; nothing if there is none. A build that has failed leaves
-- one that cannot.
SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1);

-- name: filled
-- Read how far the back-fill behind the newest version has come.
SELECT filled_to, filled_rows FROM schema_version ORDER BY number DESC LIMIT 1;

-- name: fill_on
-- Note that it has come to $1, by $2 more rows.
UPDATE schema_version SET filled_to = $1, filled_rows = filled_rows + $2
WHERE number = (SELECT max(number) FROM schema_version);

-- name: table_size
-- Estimate how many rows the table $1 has, and read its bytes without indexes; with its partitions.
SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint AS rows,
       coalesce(sum(pg_table_size(oid)), 0)::bigint AS bytes
FROM pg_class
WHERE relkind <> 'p'
  AND (oid = to_regclass($1) OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass($1))));

-- name: record_step
-- The schema has got the version $1, by a file with the checksum $2.
INSERT INTO schema_version (number, checksum) VALUES ($1, $2);

-- name: record_served
-- And instances made for an older schema than $2 cannot run on it.
UPDATE schema_version SET serves_from = $2 WHERE number = $1;
