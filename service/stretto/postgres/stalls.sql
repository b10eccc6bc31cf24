-- The end of a write that takes long while others wait.

-- name: end_stalled
-- Have the server end what its process $1 runs, or the process that leads the attempts $2 with the
-- tokens $3 (behind a pooler, where the process is not known). A statement that waits is left alone:
-- for the disk or for a standby, every other write would wait as well; each wait for a lock is bounded.
-- But a trigger may ask again and again, or set a bound of its own: after $4 seconds it has waited enough.
-- With `track_activities` off the server says neither whether a process is active nor since when. Then one
-- that does not wait for its client is, for $5 seconds by the clock of the process that asks.
SELECT coalesce(bool_or(pg_cancel_backend(pid)), false)
FROM pg_stat_activity
WHERE (state = 'active' OR state = 'disabled' AND wait_event_type IS DISTINCT FROM 'Client')
  AND coalesce(wait_event_type, '') NOT IN ('IO', 'IPC', 'LWLock')
  AND (wait_event_type IS DISTINCT FROM 'Lock'
       OR coalesce(clock_timestamp() - query_start, make_interval(secs => $5))
          > make_interval(secs => $4))
  AND (pid = $1::integer
       OR backend_xid IN (SELECT xmax FROM attempt
                          WHERE group_id = ANY ($2::uuid[]) AND claim_token = ANY ($3::uuid[])));
