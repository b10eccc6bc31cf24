-- The wait of commits for a synchronous standby.

-- name: commits_waiting
-- Return the transactions whose commits wait for a synchronous standby, of sessions that this role may see,
-- with the name of this one: others may wait for more. And of statements that have run for a second: not all
-- of that was the wait, whose begin is not to be had. Where `track_activities` is off, the server does not
-- say since when a statement runs, which `is_tracked` shows.
SELECT backend_xid::text, query_start IS NOT NULL AS is_tracked FROM pg_stat_activity
WHERE wait_event = 'SyncRep' AND datname = current_database()
  AND application_name = current_setting('application_name')
  AND (query_start IS NULL OR query_start < clock_timestamp() - interval '1 second');
