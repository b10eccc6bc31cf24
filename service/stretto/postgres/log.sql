-- The log of events, read from a place on.

-- name: origin
-- Identify this database: the cluster's id (shared by physical copies), database name, schema. The
-- schema is the one of the tables, which need not be the first of a host's search_path.
SELECT system_identifier::text || '/' || current_database() || '/' || nspname
FROM pg_control_system(), pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass('attempt');

-- name: log_present
-- Read the end of the log. It fails where a partition is detached, as does all that reads the log, or plans to.
SELECT row_to_json(outbox_present) AS present FROM outbox_present
WHERE plan_whole_log_1() AND require_whole_log_1();

-- name: log_page
-- Read the events that a place (history $1, end $2, running $3) does not cover, the next $4: those
-- whose transactions were still running, then those behind the end. A transaction may have any number
-- of events, so the page may end within one; of the transactions $7 the reader has had the events up
-- to those with the marks $8 and the ids $9. The index orders transactions, not their events: each page
-- of a large one goes through all of its rows, a microsecond for each. Of the events only those for
-- the users $5 (and of their recipients only those), and the last one; all, if null. The users are hashed once: comparing arrays would cost a comparison for each pair,
-- which is less only for few users. Members are named where a group was created with $6 at most.
-- The first row is the present, and says whether there may be more, and whether the last transaction
-- goes on behind the page. All partitions are locked before the statement has its snapshot, so that a
-- partition is not truncated between the two.
-- After a restart events can be seen that a synchronous standby still lacks. Where there is one,
-- they are returned only after the standby has them: the message's commit waits for it.
-- Behind a pooler no setting has the statement fail where policies hide events, so it says whether they
-- may: the log is locked, so that they are not switched on within the statement.
-- It fails where the session leads to another schema than ours, as a claim does (writes.sql), and where a
-- partition is detached: a place would pass over its events. Partitions are locked as long as the statement runs, so
-- what it has found stays true.
WITH present AS MATERIALIZED (
    SELECT * FROM outbox_present
), wanted AS MATERIALIZED (
    SELECT unnest($5::text[]) AS member
), had AS MATERIALIZED (
    SELECT * FROM unnest($7::text::xid8[], $8::boolean[], $9::uuid[]) AS had (at, is_change, id)
), found AS (
    SELECT * FROM outbox
    WHERE history = $1::integer AND position = ANY ($3::text::xid8[])
      AND (cardinality($9::uuid[]) = 0 OR NOT EXISTS (
          SELECT FROM had
          WHERE at = position AND (event_type IS NOT NULL, event_id) <= (is_change, id)))
    UNION ALL
    (SELECT * FROM outbox
     WHERE (history, position) >= ($1::integer, $2::xid8)
       -- One written by hand may name another, or the last position that there is: no place can be behind
       -- it. Or it is ahead of the server.
       AND history = ANY (ARRAY(SELECT number FROM outbox_history))
       AND position < '9223372036854775807'
       AND (history, position) < (SELECT history, unreached FROM present)
       AND (cardinality($9::uuid[]) = 0 OR history > $1::integer OR NOT EXISTS (
          SELECT FROM had
          WHERE at = position AND (event_type IS NOT NULL, event_id) <= (is_change, id)))
     ORDER BY history, position
     -- Of the last transaction all, since the index does not order its events.
     FETCH FIRST ($4 + 1) ROWS WITH TIES)
), page AS MATERIALIZED (
    -- Of one transaction a group's creation comes first, then its changes, whose ids grow with time.
    SELECT *, row_number() OVER (ORDER BY history, position, event_type IS NOT NULL, event_id)
               AS number,
           CASE WHEN $5::text[] IS NULL THEN recipients
                WHEN cardinality($5::text[]) <= 8 AND NOT recipients && $5::text[] THEN '{}'
                -- `IS TRUE` keeps the planner from making a join of it, once for each event.
                ELSE ARRAY(SELECT recipient FROM unnest(recipients) AS recipient
                           WHERE (recipient IN (SELECT member FROM wanted)) IS TRUE) END AS own
    FROM (SELECT * FROM found
          ORDER BY history, position, event_type IS NOT NULL, event_id
          LIMIT $4 + 1) AS first
)
SELECT row_to_json(present) AS present,
       (SELECT count(*) FROM page) >= $4 AS is_full,
       (SELECT count(*) FROM page AS next JOIN page AS last USING (history, position)
        WHERE next.number = $4 + 1 AND last.number = $4) > 0 AS is_cut,
       CASE WHEN current_setting('synchronous_standby_names') <> '' AND EXISTS (SELECT FROM page)
            THEN pg_logical_emit_message(true, 'stretto', '') END AS replicated_at,
       CASE WHEN row_security_active('outbox') THEN 'outbox' END AS filtered,
       quote_ident(current_user) AS role,
       NULL AS history, NULL AS position, NULL AS event_id, NULL AS subject,
       NULL AS conversation_id, NULL AS owner_id, NULL AS group_name, NULL AS members_count,
       NULL AS group_kind, NULL AS metadata, NULL AS trace_context, NULL AS event_type,
       NULL AS change, NULL AS recipients, NULL AS member_ids, NULL AS number
FROM present
WHERE require_home_1(NULL, '') = ''
  AND plan_whole_log_1() AND require_whole_log_1()
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, history, position, event_id, subject, conversation_id,
       recipients[1], group_name, cardinality(recipients),
       group_kind, metadata::text, trace_context, event_type, change::text, own,
       CASE WHEN event_type IS NULL AND cardinality(recipients) <= $6 THEN recipients END, number
FROM page
WHERE number <= $4 AND (own <> '{}' OR number = least($4, (SELECT max(number) FROM page)))
ORDER BY number NULLS FIRST;

-- name: deleted_groups
-- Read which groups were deleted behind a place (history $1, end $2, running $3), $4 at most, and the
-- present. All events behind the place are gone through: since the last look there are not many. The answer
-- confirms what is remembered, so it waits for a synchronous standby, where there is one: a primary that was
-- replaced by its standby, and still runs, knows of no deletion. Policies are looked for as in log_page, once
-- the routine has locked the log. So is another schema than ours.
SELECT row_to_json(outbox_present) AS present,
       deleted_groups_1($1, $2, $3::text::xid8[], $4) AS group_ids,
       CASE WHEN current_setting('synchronous_standby_names') <> ''
            THEN pg_logical_emit_message(true, 'stretto', '') END AS replicated_at,
       CASE WHEN row_security_active('outbox') THEN 'outbox' END AS filtered,
       quote_ident(current_user) AS role
FROM outbox_present
WHERE require_home_1(NULL, '') = ''
  AND plan_whole_log_1() AND require_whole_log_1();

-- name: reader_place
-- Read the place of a reader $1. It fails where policies may hide the reader or its history.
SELECT history, (SELECT id FROM outbox_history WHERE number = history) AS history_id,
       seen::text AS seen, parts
FROM outbox_reader WHERE name = $1 AND require_all_rows_1('outbox_reader', 'outbox_history');

-- name: begin_again
-- Have a reader $1, whose row was lost in a failover or by hand, begin at history $2, snapshot $3 and
-- parts $4, with the target $5, if that history has the id $6 here; another process may have done so.
INSERT INTO outbox_reader (name, history, seen, parts, target_digest)
SELECT $1, $2, $3::text::pg_snapshot, $4, $5
WHERE EXISTS (SELECT FROM outbox_history WHERE number = $2 AND id = $6)
ON CONFLICT DO NOTHING;
