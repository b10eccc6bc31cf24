-- Every statement that stretto sends, by name. A name is the method that sends it.
-- `$n::timestamptz` named "now" in a comment is the clock: null is the database's own.

-- name: claim
-- Insert the pending attempts of a batch and return the tokens that won. Commits without waiting for
-- the disk: a claim lost in a crash is noticed by the leader's settle. A key whose group exists is
-- not claimed, so that a request that is refused as a reuse leaves no attempt behind. Nor is a key
-- whose attempt exists: the insert would wait for the leader that is writing it. What is left to wait
-- for is a claim that commits at this moment, and it is waited for no longer than $5.
INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
SELECT claim.group_id, claim.owner_id, claim.fingerprint, claim.claim_token
FROM set_config('synchronous_commit', 'off', true),
     set_config('lock_timeout', $5, true) AS patience,
     unnest($1::uuid[], $2::text[], $3::bytea[], $4::uuid[])
         AS claim (group_id, owner_id, fingerprint, claim_token)
WHERE NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = claim.group_id)
  AND NOT EXISTS (SELECT FROM attempt WHERE attempt.group_id = claim.group_id)
ON CONFLICT DO NOTHING
RETURNING claim_token;

-- name: lead
-- Settle the attempts that still carry our token and write their groups, in one commit. The update
-- is the fence, the row lock and the settlement at once; everything else hangs on what it returned.
-- A lock is waited for no longer than $9, until the transaction ends.
WITH write AS (
    SELECT group_id, claim_token, conversation_id, name, description, recipients::text[], event_id,
           payload::json
    FROM set_config('lock_timeout', $9, true) AS patience,
         unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::uuid[],
                $8::text[])
        AS write (group_id, claim_token, conversation_id, name, description, recipients, event_id,
                  payload)
), settled AS (
    UPDATE attempt
    SET status = 'succeeded', conversation_id = write.conversation_id,
        settled_at = clock_timestamp()
    FROM write
    WHERE attempt.group_id = write.group_id
      AND attempt.claim_token = write.claim_token
      AND attempt.status = 'pending'
      -- A group from before its attempt was swept must not spoil the batch: that key heals.
      AND NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = write.group_id)
    RETURNING attempt.owner_id, attempt.fingerprint, write.*
), new_conversation AS (
    INSERT INTO conversation (conversation_id) SELECT conversation_id FROM settled
), new_group AS (
    INSERT INTO chat_group (group_id, owner_id, name, description, fingerprint, conversation_id)
    SELECT group_id, owner_id, name, description, fingerprint, conversation_id FROM settled
), new_member AS (
    INSERT INTO conversation_member (conversation_id, user_id, role)
    SELECT conversation_id, user_id,
           CASE WHEN user_id = owner_id THEN 'owner' ELSE 'member' END
    FROM settled, unnest(recipients) AS user_id
), new_event AS (
    INSERT INTO outbox (event_id, event_type, subject, recipients, payload)
    SELECT event_id, 'group.created', group_id, recipients, payload FROM settled
)
SELECT claim_token FROM settled;

-- name: unlocked
-- Return the tokens $2 of the attempts $1 that a lead could settle now. The rows of the others are
-- held by another transaction, or are not theirs any more.
SELECT claim_token FROM attempt
WHERE group_id = ANY ($1::uuid[]) AND claim_token = ANY ($2::uuid[]) AND status = 'pending'
FOR UPDATE SKIP LOCKED;

-- name: are_tables_locked
-- Ask whether another session holds, or waits for, a lock on one of our tables that lets nothing be
-- inserted.
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE locktype = 'relation' AND pid <> pg_backend_pid()
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation IN ('attempt'::regclass, 'chat_group'::regclass, 'conversation'::regclass,
                       'conversation_member'::regclass, 'outbox'::regclass)
      AND mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'));

-- name: server
-- Ask which server this is, since its last start: a standby that was promoted has another start, and so
-- has a primary that was restored.
SELECT system_identifier || '/' || extract(epoch FROM pg_postmaster_start_time())
FROM pg_control_system();

-- name: session
-- Read which transaction this is, and what a host's hook may leave behind in a session: roles,
-- settings (but those of the transaction, the lock time-out, which each write sets anew, and names
-- that only the host knows), locks, temporary tables, statements, cursors.
SELECT pg_current_xact_id_if_assigned()::text AS transaction_id,
       current_setting('synchronous_commit') AS durability,
       session_user::text, current_user::text,
       (SELECT md5(string_agg(name || '=' || setting, ',' ORDER BY name)) FROM pg_settings
        WHERE name NOT IN ('transaction_isolation', 'transaction_read_only',
                           'transaction_deferrable', 'lock_timeout')) AS settings,
       (SELECT count(*) FROM pg_locks
        WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
       (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()) AS temporary,
       (SELECT count(*) FROM pg_prepared_statements WHERE from_sql) AS statements,
       (SELECT count(*) FROM pg_cursors WHERE is_holdable) AS cursors;

-- name: commit_durably
-- Have this transaction's commit wait for the disk as $1 says, whatever a host's hook has set for its own
-- rows: an outcome is reported only when it is durable.
SELECT set_config('synchronous_commit', $1, true);

-- name: transaction_status
-- Ask how the transaction $1 has ended.
SELECT pg_xact_status($1::text::xid8);

-- name: unlock_session
-- Release what a host's hook has locked in a session that is not ours.
SELECT pg_advisory_unlock_all();

-- name: fail
-- Settle one attempt as failed: only its leader may, and only where there is no group.
UPDATE attempt
SET status = 'failed', failure_code = $3, failure_detail = $4, settled_at = clock_timestamp()
WHERE group_id = $1 AND claim_token = $2 AND status = 'pending'
  AND NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = $1)
RETURNING claim_token;

-- name: look
-- Read attempts and the groups of the same ids $1, a row for each, in their order. $2 are the leases in
-- seconds, $3 is now. Each row is a subquery with a limit, so that it is found by its key: a join that
-- was planned while the tables were small would go on reading all of them. A lease that began further
-- ahead than it lasts was written by another clock, before a failover, and is over. After a restart
-- rows can be seen that a synchronous standby still lacks. Where there is such a standby, an outcome is
-- reported only after the standby has it: the outcome is read with a word to the log, whose commit
-- waits for it.
SELECT attempt.status, attempt.fingerprint, attempt.claim_token, attempt.conversation_id,
       attempt.failure_code, attempt.failure_detail, attempt.claimed_at, attempt.settled_at,
       greatest(now - attempt.claimed_at, attempt.claimed_at - now)
           >= make_interval(secs => lease_seconds) AS lease_over,
       chat_group.conversation_id AS group_conversation_id,
       chat_group.fingerprint AS group_fingerprint,
       chat_group.created_at AS group_created_at,
       CASE WHEN (attempt.status <> 'pending' OR chat_group.group_id IS NOT NULL)
                 AND current_setting('synchronous_standby_names') <> ''
            THEN pg_logical_emit_message(true, 'stretto', '') END AS replicated_at
FROM unnest($1::uuid[], $2::float8[]) WITH ORDINALITY AS wanted (group_id, lease_seconds, number)
CROSS JOIN (SELECT coalesce($3::timestamptz, clock_timestamp()) AS now) AS clock
LEFT JOIN LATERAL (SELECT * FROM attempt WHERE group_id = wanted.group_id LIMIT 1) AS attempt ON true
LEFT JOIN LATERAL (
    SELECT * FROM chat_group WHERE group_id = wanted.group_id LIMIT 1
) AS chat_group ON true
ORDER BY number;

-- name: heal
-- Settle an attempt as succeeded because its group exists; put it back where it was deleted, with the
-- times of the group: it was settled when its group was created. A row that another transaction holds
-- is left alone: the answer does not need it. Needs no durability: what is lost heals again.
WITH healed AS (
    UPDATE attempt
    SET status = 'succeeded', fingerprint = chat_group.fingerprint, claim_token = $2,
        conversation_id = chat_group.conversation_id,
        settled_at = greatest(attempt.claimed_at, chat_group.created_at)
    FROM set_config('synchronous_commit', 'off', true), chat_group
    WHERE chat_group.group_id = $1
      AND attempt.group_id = (
          SELECT group_id FROM attempt WHERE group_id = $1 AND status = 'pending'
          FOR UPDATE SKIP LOCKED
      )
)
INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status, conversation_id,
                     claimed_at, settled_at)
SELECT group_id, owner_id, fingerprint, $2, 'succeeded', conversation_id, created_at, created_at
FROM set_config('synchronous_commit', 'off', true), chat_group
WHERE group_id = $1 AND NOT EXISTS (SELECT FROM attempt WHERE attempt.group_id = $1)
ON CONFLICT DO NOTHING;

-- name: reclaim
-- Take a pending attempt over from the token that was seen, if its lease is over (as in look). A row
-- that is locked is being written by a leader who lives: it is left alone. $4 is the lease in seconds,
-- $5 now.
WITH clock AS MATERIALIZED (
    SELECT coalesce($5::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
)
UPDATE attempt
SET claim_token = $3, claimed_at = clock.now
FROM clock
WHERE group_id = (
    SELECT group_id FROM attempt, clock
    WHERE group_id = $1 AND claim_token = $2 AND status = 'pending'
      AND greatest(now - claimed_at, claimed_at - now) >= make_interval(secs => $4)
    FOR UPDATE OF attempt SKIP LOCKED
)
RETURNING group_id;

-- name: group_of_member
-- Read groups by id ($1), each if its user ($2) is a member of it; `number` is the question's place.
-- By their keys, as in look.
SELECT number, chat_group.group_id, conversation_id, owner_id, name, description, created_at,
       (SELECT count(*) FROM conversation_member AS member
        WHERE member.conversation_id = chat_group.conversation_id) AS members_count
FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS wanted (group_id, user_id, number)
CROSS JOIN LATERAL (
    SELECT * FROM chat_group WHERE group_id = wanted.group_id LIMIT 1
) AS chat_group
CROSS JOIN LATERAL (
    SELECT role FROM conversation_member AS member
    WHERE member.conversation_id = chat_group.conversation_id AND member.user_id = wanted.user_id
    LIMIT 1
) AS membership;

-- name: groups_of_member
-- Read pages of users' groups, newest first: of each user ($1) up to $3 behind the conversation id
-- that the last page ended on ($2; null for the first page). `number` is the question's place.
SELECT number, page.*
FROM unnest($1::text[], $2::uuid[], $3::int[]) WITH ORDINALITY
         AS wanted (user_id, after, groups_max, number)
CROSS JOIN LATERAL (
    SELECT chat_group.group_id, conversation_id, owner_id, name, description, created_at,
           (SELECT count(*) FROM conversation_member AS member
            WHERE member.conversation_id = chat_group.conversation_id) AS members_count
    FROM conversation_member
    JOIN chat_group USING (conversation_id)
    WHERE conversation_member.user_id = wanted.user_id
      -- A condition of the index in either case: no id is as large as this one.
      AND conversation_id < coalesce(after, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    ORDER BY conversation_id DESC
    LIMIT groups_max
) AS page
ORDER BY number, conversation_id DESC;

-- name: groups_of_owner
-- Read a page of the groups that a user owns, newest first, as groups_of_member does.
SELECT chat_group.group_id, conversation_id, owner_id, name, description, created_at,
       (SELECT count(*) FROM conversation_member AS member
        WHERE member.conversation_id = chat_group.conversation_id) AS members_count
FROM conversation_member
JOIN chat_group USING (conversation_id)
WHERE user_id = $1 AND owner_id = $1 AND ($2::uuid IS NULL OR conversation_id < $2)
ORDER BY conversation_id DESC
LIMIT $3;

-- name: members_of_group
-- Read pages of groups' members by user id: of each group ($1) up to $3 behind the user id that the
-- last page ended on ($2; null for the first page). `number` is the question's place.
SELECT number, page.*
FROM unnest($1::uuid[], $2::text[], $3::int[]) WITH ORDINALITY
         AS wanted (group_id, after, members_max, number)
CROSS JOIN LATERAL (
    SELECT user_id, role, joined_at
    FROM chat_group
    JOIN conversation_member USING (conversation_id)
    WHERE chat_group.group_id = wanted.group_id
      AND user_id COLLATE "C" > coalesce(after, '') COLLATE "C"
    ORDER BY user_id COLLATE "C"
    LIMIT members_max
) AS page
ORDER BY number, user_id COLLATE "C";

-- name: history_origin
-- Tell this database from every other: of this server and of its copies, and of this name. The schema is
-- the one of the tables, which need not be the first of a host's search_path.
SELECT system_identifier || '/' || current_database() || '/' || nspname
FROM pg_control_system(), pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass('attempt');

-- name: history_bounds
-- Ask where history stands: see HistoryBounds in protocol/history.py.
SELECT pg_snapshot_xmin(snapshot) AS settled,
       least(pg_snapshot_xmin(snapshot),
             (SELECT min(position) FROM outbox WHERE delivered_at IS NULL AND dead_reason IS NULL)
       ) AS live,
       pg_snapshot_xmax(snapshot) AS next
FROM pg_current_snapshot() AS snapshot;

-- name: history_page
-- Read up to $4 events behind an event ($1 its position, $2 its id), those that the users $3 are
-- told; all, if null. The last of a full page is always returned: the next one begins behind it.
SELECT *
FROM (
    SELECT event_id, event_type, subject, recipients, payload, created_at, position,
           delivered_at IS NULL AS is_under_way,
           row_number() OVER (ORDER BY position, event_id) AS number
    FROM outbox
    WHERE position >= $1 AND (position, event_id) > ($1, $2)
    ORDER BY position, event_id
    LIMIT $4
) AS page
WHERE $3::text[] IS NULL OR recipients && $3::text[] OR number = $4
ORDER BY number;

-- name: is_history_foreign
-- Ask whether the start of history is of the future: then it is another server's, from which the tables
-- were restored. A sweep moves it to what this server has counted at most.
SELECT position > pg_snapshot_xmax(pg_current_snapshot()) FROM history_start;

-- name: open_history
-- Have history begin where this server's does: with the first event that it has numbered, or with what
-- commits from now on. Nothing of it was swept yet.
UPDATE history_start
SET position = least(pg_snapshot_xmin(snapshot), (SELECT min(position) FROM outbox))
FROM pg_current_snapshot() AS snapshot
WHERE history_start.position > pg_snapshot_xmax(snapshot);

-- name: history_start
-- Ask from which position on nothing was swept.
SELECT position FROM history_start;

-- name: bound_transactions
-- Have the session's transactions end after $1, where the server knows of such a bound.
SELECT set_config(name, $1, false) FROM pg_settings WHERE name = 'transaction_timeout';

-- name: backend
-- Ask which of the server's processes is behind the connection.
SELECT pg_backend_pid();

-- name: ping
-- Ask whether the database answers and has our tables.
SELECT to_regclass('attempt') IS NOT NULL AS is_migrated;

-- name: ping_session
-- Ask for the encodings of the database and of the session, and what its transactions see.
SELECT current_setting('server_encoding') AS server_encoding,
       current_setting('client_encoding') AS client_encoding,
       current_setting('default_transaction_isolation') AS isolation,
       quote_ident(current_user) AS role, quote_ident(current_database()) AS database;

-- name: schema_state
-- Describe the schema $1 (null: the one of the tables that the search_path leads to) for the current
-- role: whether it has our tables, which of the tables $2 it lacks, whether the role may use it, and on
-- which of them the role lacks one of the privileges $3.
WITH place AS (
    SELECT CASE WHEN $1::text IS NULL
                THEN (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('attempt'))
                ELSE (SELECT oid FROM pg_namespace WHERE nspname = $1::text) END AS schema
), needed AS (
    SELECT pg_class.oid, name, privileges
    FROM unnest($2::text[], $3::text[]) AS needed (name, privileges), place, pg_class
    WHERE relnamespace = schema AND relname = name
)
SELECT EXISTS (SELECT FROM needed WHERE name = 'schema_version') AS is_migrated,
       coalesce(has_schema_privilege(schema, 'USAGE'), false) AS is_usable,
       ARRAY(SELECT unnest($2::text[]) EXCEPT SELECT name::text FROM needed ORDER BY 1) AS missing,
       ARRAY(SELECT name FROM needed
             WHERE EXISTS (SELECT FROM regexp_split_to_table(privileges, ', ') AS privilege
                           WHERE NOT has_table_privilege(needed.oid, privilege))
             ORDER BY name) AS forbidden,
       current_user::text AS role
FROM place;

-- name: schema_number
-- Ask which numbered change of the schema the database has.
SELECT max(number) FROM schema_version;

-- name: grants
-- Write the statements that give the roles $2 the privileges $4 on the tables $3 of the schema $1, and
-- the same kind of privileges on tables that later migrations of this role add.
SELECT format('GRANT USAGE ON SCHEMA %I TO %I', $1::text, role)
FROM unnest($2::text[]) AS role
UNION ALL
SELECT format('GRANT %s ON TABLE %I.%I TO %I', privileges, $1, name, role)
FROM unnest($3::text[], $4::text[]) AS needed (name, privileges), unnest($2) AS role
UNION ALL
SELECT format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I'
              ' GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO %I', $1, role)
FROM unnest($2) AS role;

-- name: unknown_roles
--- Find those of $1 that are no roles of this server.
SELECT role FROM unnest($1::text[]) AS role
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role);

-- name: not_granted
--- Find which of the roles $2 lack what they need in the schema $1, one of the privileges $4 on the
--- tables $3 or the use of it, and who owns what they lack.
SELECT role, pg_get_userbyid(nspowner)::text AS owner
FROM pg_namespace, unnest($2::text[]) AS role
WHERE nspname = $1::text AND NOT has_schema_privilege(role, pg_namespace.oid, 'USAGE')
UNION
SELECT role, pg_get_userbyid(relowner)::text
FROM unnest($3::text[], $4::text[]) AS needed (name, privileges)
JOIN pg_class ON relname = name
JOIN pg_namespace ON pg_namespace.oid = relnamespace AND nspname = $1::text,
     unnest($2) AS role, unnest(string_to_array(privileges, ', ')) AS privilege
WHERE NOT has_table_privilege(role, pg_class.oid, privilege)
ORDER BY role, owner;

-- name: is_read_only
-- Ask whether the server refuses writes of this session: a standby, or default_transaction_read_only.
SELECT current_setting('transaction_read_only')::boolean AS is_read_only;

-- name: ping_pool
-- Ask whether the search_path of a host's pool leads to our tables $1, all in one schema, and which
-- schemas have them. A table that is not there at all is a matter of the schema's number.
SELECT (SELECT count(DISTINCT relnamespace) = 1 AND bool_or(relname = 'conversation_member')
        FROM unnest($1::text[]) AS name JOIN pg_class ON pg_class.oid = to_regclass(name)) AS is_led,
       current_setting('search_path') AS search_path,
       (SELECT string_agg(quote_ident(schemaname), ', ' ORDER BY schemaname) FROM pg_tables
        WHERE tablename = 'conversation_member') AS schemas,
       pg_backend_pid() AS backend;

-- name: ping_codecs
-- Have a value of each type that our statements take or return come back twice: as the driver reads it,
-- and whether it has arrived as it was sent.
SELECT '00000000-0000-0000-0000-000000000007'::uuid AS uuid,
       '{00000000-0000-0000-0000-000000000007}'::uuid[] AS "uuid[]",
       'a'::text AS text, '{a,NULL}'::text[] AS "text[]", 'a'::name AS name, '{a}'::name[] AS "name[]",
       '\x61'::bytea AS bytea, '{"\\x61"}'::bytea[] AS "bytea[]", '{"a": 1}'::json AS json,
       '2000-01-02 03:04:05Z'::timestamptz AS timestamptz, true AS bool,
       '{true}'::bool[] AS "bool[]", '(0,7)'::tid AS tid, '0/7'::pg_lsn AS pg_lsn, 7::int4 AS int4, '{7}'::int4[] AS "int4[]", 7::int8 AS int8,
       7.5::float8 AS float8, '{7.5}'::float8[] AS "float8[]", '7'::xid8 AS xid8,
       ($1::uuid, $2::uuid[], $3::text, $4::text[], $5::bytea, $6::bytea[], $7::timestamptz, $8::bool)
       = ('00000000-0000-0000-0000-000000000007'::uuid,
          '{00000000-0000-0000-0000-000000000007}'::uuid[], 'a'::text, '{a,NULL}'::text[],
          '\x61'::bytea, '{"\\x61"}'::bytea[], '2000-01-02 03:04:05Z'::timestamptz, true)
       AND ($9::int4, $10::int4[], $11::int8, $12::float8, $13::float8[], $14::xid8, $15::bool[], $16::tid)
       = (7::int4, '{7}'::int4[], 7::int8, 7.5::float8, '{7.5}'::float8[], '7'::xid8, '{true}'::bool[],
          '(0,7)'::tid) AS is_sent;

-- name: ping_pooled
-- Ask the same behind PgBouncer, and whether the role leads to the schema $1, does not wait for locks
-- for ever, lets no write be cancelled, and has statements see what commits.
SELECT to_regclass(quote_ident($1::text) || '.attempt') IS NOT NULL AS is_migrated,
       current_schema() IS NOT DISTINCT FROM $1::text
           AND current_setting('lock_timeout')::interval > '0'
           AND current_setting('statement_timeout')::interval = '0'
           AND current_setting('default_transaction_isolation') = 'read committed' AS is_set,
       quote_ident(current_user) AS role, quote_ident(current_database()) AS database;

-- name: take
-- Lease up to $1 due events for $2 seconds, the oldest first, and tell from where to resume: everything
-- before that place was marked, or is dead, in the snapshot of this statement. Needs no durability:
-- a lease lost in a crash only brings its events back sooner. $3 is now. An event that is due later than
-- this clock could have put it off (by a lease, or by the longest pause $4 after a try) was put off by
-- another clock, before a failover, and is due. One lease is added: another relay may have read the
-- clock after this statement did.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), due AS MATERIALIZED (
    SELECT event_id FROM outbox
    WHERE delivered_at IS NULL AND dead_reason IS NULL
      AND (due_at <= (SELECT now FROM clock)
           OR due_at > (SELECT now FROM clock) + make_interval(
               secs => $2 + CASE WHEN tries = 0 THEN $2 ELSE greatest($2, $4::float8) END))
    ORDER BY position
    LIMIT $1
    FOR UPDATE SKIP LOCKED
), place AS MATERIALIZED (
    SELECT least(pg_snapshot_xmin(pg_current_snapshot()),
                 (SELECT min(position) FROM outbox
                  WHERE delivered_at IS NULL AND dead_reason IS NULL)) AS resume_from
)
UPDATE outbox
SET due_at = clock.now + make_interval(secs => $2)
FROM due, clock, place
WHERE outbox.event_id = due.event_id
RETURNING outbox.event_id, event_type, subject, recipients, payload, created_at, position,
          resume_from;

-- name: oldest_unpublished
-- Read the age in seconds of the first event, in the order of history, that is still to be published;
-- nothing where there is none. $1 is now.
SELECT extract(epoch FROM coalesce($1::timestamptz, clock_timestamp()) - created_at)::float8
FROM outbox
WHERE delivered_at IS NULL AND dead_reason IS NULL
ORDER BY position
LIMIT 1;

-- name: mark
-- Note that these events were handed over. Needs no durability: what is lost is handed over again.
UPDATE outbox
SET delivered_at = coalesce($2::timestamptz, clock_timestamp()), dead_reason = NULL
FROM set_config('synchronous_commit', 'off', true)
WHERE event_id = ANY ($1::uuid[]) AND delivered_at IS NULL;

-- name: release
-- End the lease of events that were not handed over. $2 is now.
UPDATE outbox
SET due_at = coalesce($2::timestamptz, clock_timestamp())
FROM set_config('synchronous_commit', 'off', true)
WHERE event_id = ANY ($1::uuid[]) AND delivered_at IS NULL AND dead_reason IS NULL;

-- name: refuse
-- Put off events that the bus refused for the reasons $2, twice as long at each try and at random, so
-- that they do not come back together: from $4 seconds on, at most $5. After $3 tries an event is
-- dead. $6 is now. Returns those that died.
WITH refused AS (
    UPDATE outbox
    SET tries = tries + 1,
        due_at = coalesce($6::timestamptz, clock_timestamp()) + make_interval(
            secs => least($4::float8 * 2 ^ least(tries, 30), $5::float8) * (0.5 + random() / 2)),
        dead_reason = CASE WHEN tries + 1 >= $3 THEN left(reason, 1024) END
    FROM unnest($1::uuid[], $2::text[]) AS answer (event_id, reason)
    WHERE outbox.event_id = answer.event_id AND delivered_at IS NULL AND dead_reason IS NULL
    RETURNING outbox.event_id, dead_reason
)
SELECT event_id FROM refused WHERE dead_reason IS NOT NULL;

-- name: dead_letters
-- Read the first $1 events that are not tried any more, on the bus or at the webhook's endpoint, the
-- oldest first.
SELECT event_id, event_type, subject, created_at, tries, dead_reason
FROM outbox
WHERE dead_reason IS NOT NULL
UNION ALL
SELECT event_id, event_type, subject, created_at, delivery.tries, 'webhook: ' || delivery.dead_reason
FROM webhook_delivery AS delivery
JOIN outbox USING (event_id)
WHERE delivery.dead_reason IS NOT NULL
ORDER BY created_at, event_id
LIMIT $1;

-- name: replay
-- Have dead letters tried again: those of the ids $1, or all if null. They move to the end of history,
-- so that nobody who resumes behind their old place misses them. Those of the webhook stay in theirs.
WITH published AS (
    UPDATE outbox
    SET dead_reason = NULL, tries = 0, due_at = clock_timestamp(), position = pg_current_xact_id()
    WHERE dead_reason IS NOT NULL AND ($1::uuid[] IS NULL OR event_id = ANY ($1))
    RETURNING event_id
), sent AS (
    UPDATE webhook_delivery
    SET dead_reason = NULL, tries = 0, due_at = clock_timestamp()
    WHERE dead_reason IS NOT NULL AND ($1::uuid[] IS NULL OR event_id = ANY ($1))
    RETURNING event_id
)
SELECT event_id FROM published UNION SELECT event_id FROM sent;

-- name: open_webhook
-- Have the webhook begin with what commits from now on, unless it has begun. A snapshot of the future
-- is another server's, from which the tables were restored: nothing is known to be seen then.
WITH opened AS (
    INSERT INTO webhook DEFAULT VALUES ON CONFLICT DO NOTHING
)
UPDATE webhook SET seen = '1:1:'
WHERE pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot());

-- name: enrol
-- Make deliveries of events that were not seen before: of those whose transactions were running then,
-- and of the next $1 at least, with all of the last one's transaction. Then this snapshot has seen
-- them, as far as we have come. $2 is now. Needs no durability: all is lost together. Where the clock
-- has gone back, as after a failover, what was put off goes back with it: by as much as the webhook was
-- served in the future, which is known to a minute.
WITH clock AS MATERIALIZED (
    SELECT coalesce($2::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), turn AS MATERIALIZED (
    -- Another process may have moved it since our snapshot: what we see beyond is still new, and what
    -- was running for us is at worst sent twice.
    SELECT seen, CASE WHEN served_at > now + interval '1 minute' THEN served_at - now
                      ELSE '0' END AS set_back
    FROM webhook, clock WHERE disabled_at IS NULL FOR UPDATE OF webhook SKIP LOCKED
), moved AS (
    UPDATE webhook_delivery SET due_at = due_at - set_back FROM turn WHERE set_back > '0'
), late AS MATERIALIZED (
    SELECT event_id, created_at FROM outbox
    WHERE position = ANY (ARRAY(SELECT pg_snapshot_xip(seen) FROM turn))
), fresh AS MATERIALIZED (
    SELECT event_id, created_at, position FROM outbox
    WHERE position >= (SELECT pg_snapshot_xmax(seen) FROM turn)
      AND position < pg_snapshot_xmax(pg_current_snapshot())
    ORDER BY position
    FETCH FIRST $1 ROWS WITH TIES
), found AS MATERIALIZED (
    SELECT event_id, created_at FROM late UNION ALL SELECT event_id, created_at FROM fresh
), enrolled AS (
    INSERT INTO webhook_delivery (event_id, due_at, owed_since)
    SELECT event_id, clock.now, created_at FROM found, clock
    ON CONFLICT DO NOTHING
), bound AS (
    SELECT CASE WHEN count(*) < $1 THEN pg_snapshot_xmax(pg_current_snapshot())
                ELSE (max(position)::text::bigint + 1)::text::xid8 END AS xmax
    FROM fresh
), place AS (
    SELECT format('%s:%s:%s', coalesce(min(xip), xmax), xmax,
                  string_agg(xip::text, ',' ORDER BY xip))::pg_snapshot AS seen
    FROM bound LEFT JOIN pg_snapshot_xip(pg_current_snapshot()) AS xip ON xip < xmax
    GROUP BY xmax
)
UPDATE webhook
SET seen = place.seen, served_at = clock.now, paused_until = paused_until - set_back
FROM clock, turn, place, (SELECT count(*) AS events FROM found) AS stretch
-- An idle webhook writes once a minute, and not at every look.
WHERE events > 0 OR served_at < clock.now - interval '1 minute' OR set_back > '0'
RETURNING events;

-- name: take_deliveries
-- Lease up to $1 due deliveries for $2 seconds, if the endpoint may be called. $3 is now. Needs no
-- durability, as in take.
WITH clock AS MATERIALIZED (
    SELECT coalesce($3::timestamptz, clock_timestamp()) AS now,
           set_config('synchronous_commit', 'off', true)
), due AS MATERIALIZED (
    SELECT event_id
    FROM webhook_delivery AS delivery
    JOIN outbox USING (event_id)
    WHERE delivery.dead_reason IS NULL AND delivery.due_at <= (SELECT now FROM clock)
      AND (SELECT disabled_at IS NULL AND paused_until <= now FROM webhook, clock)
    ORDER BY delivery.due_at
    LIMIT $1
    FOR UPDATE OF delivery SKIP LOCKED
)
UPDATE webhook_delivery AS delivery
SET due_at = clock.now + make_interval(secs => $2)
FROM due, clock, outbox
WHERE delivery.event_id = due.event_id AND outbox.event_id = due.event_id
RETURNING outbox.event_id, event_type, subject, payload, created_at, delivery.tries;

-- name: oldest_undelivered
-- Read the age in seconds of the oldest event that the endpoint still has to get, enrolled or not;
-- nothing where there is none, or where the endpoint is disabled. $1 is now.
SELECT extract(epoch FROM coalesce($1::timestamptz, clock_timestamp()) - least(
    (SELECT owed_since FROM webhook_delivery AS delivery JOIN outbox USING (event_id)
     WHERE delivery.dead_reason IS NULL
     ORDER BY owed_since LIMIT 1),
    (SELECT min(created_at) FROM outbox
     WHERE position = ANY (ARRAY(SELECT pg_snapshot_xip(webhook.seen)))),
    (SELECT created_at FROM outbox
     WHERE position >= pg_snapshot_xmax(webhook.seen)
     ORDER BY position LIMIT 1)))::float8
FROM webhook
WHERE disabled_at IS NULL;

-- name: settle_deliveries
-- Forget deliveries that came about ($1), put the others ($2) off by $3 seconds, count those of them
-- that were tries ($4), and bury those that have a reason ($5). $6 is now. Needs no durability: what is
-- lost is sent again.
WITH sent AS (
    DELETE FROM webhook_delivery WHERE event_id = ANY ($1::uuid[])
)
UPDATE webhook_delivery AS delivery
SET due_at = coalesce($6::timestamptz, clock_timestamp()) + make_interval(secs => seconds),
    tries = tries + is_try::integer, dead_reason = reason
FROM set_config('synchronous_commit', 'off', true),
     unnest($2::uuid[], $3::float8[], $4::boolean[], $5::text[])
         AS answer (event_id, seconds, is_try, reason)
WHERE delivery.event_id = answer.event_id AND dead_reason IS NULL;

-- name: pause_webhook
-- Send nothing for $1 seconds, or until it was to go on anyway. $2 is now.
UPDATE webhook
SET paused_until = greatest(
    paused_until, coalesce($2::timestamptz, clock_timestamp()) + make_interval(secs => $1));

-- name: disable_webhook
-- Send nothing more; returns nothing where that was so already.
UPDATE webhook SET disabled_at = clock_timestamp() WHERE disabled_at IS NULL RETURNING true;

-- name: enable_webhook
-- Send again, at once: also what was put off, in a pause or after a failure. Returns nothing where the
-- webhook was neither disabled nor paused.
WITH enabled AS (
    UPDATE webhook
    SET disabled_at = NULL, paused_until = '-infinity', served_at = clock_timestamp()
    WHERE disabled_at IS NOT NULL OR paused_until > clock_timestamp()
    RETURNING true AS is_news
), hastened AS (
    UPDATE webhook_delivery SET due_at = clock_timestamp()
    FROM enabled
    WHERE dead_reason IS NULL AND due_at > clock_timestamp()
)
SELECT is_news FROM enabled;

-- name: webhook_paused_until
-- Ask until when the endpoint wants nothing, if it has asked for a pause.
SELECT paused_until FROM webhook WHERE paused_until > clock_timestamp();

-- name: webhook_disabled_at
-- Ask since when the webhook is disabled.
SELECT disabled_at FROM webhook;

-- name: first_time
-- Record that a consumer deals with a message; returns nothing where it has done so already. Waits
-- for another transaction that is dealing with the same one.
INSERT INTO inbox (consumer, message_id) VALUES ($1, $2)
ON CONFLICT DO NOTHING
RETURNING message_id;

-- name: table_blocks
-- Ask how many blocks the largest part of a table has, and how many parts there are: the sweeper goes
-- through all of them at once, range by range. A table that is not partitioned is its only part; a
-- partitioned one has no blocks of its own.
SELECT coalesce(max(pg_relation_size(relid)), 0) / current_setting('block_size')::bigint AS blocks,
       greatest(count(*) FILTER (WHERE relid <> to_regclass($1)), 1) AS parts
FROM (SELECT to_regclass($1) AS relid
      UNION SELECT relid FROM pg_partition_tree(to_regclass($1)) WHERE isleaf) AS part;

-- name: sweep_attempts
-- Delete the attempts between two places of the table ($1, $2) that were settled more than $3 days
-- ago, unless another sweeper is at work. No index leads to them: one on settled_at would make every
-- settlement dearer. $4 is now. Needs no durability: what comes back is deleted again.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))
               AS is_ours,
           set_config('synchronous_commit', 'off', true)
), swept AS (
    DELETE FROM attempt
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND settled_at < coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3)
    RETURNING true
)
SELECT is_ours, (SELECT count(*) FROM swept) AS rows FROM turn;

-- name: sweep_events
-- The same for events that were handed over more than $3 days ago; history then starts behind them.
-- What the webhook still has to send stays, unless it is disabled, or nobody has served it for so long.
WITH webhook_live AS MATERIALIZED (
    SELECT seen FROM webhook
    WHERE disabled_at IS NULL
      AND served_at >= coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3)
), turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))
               AS is_ours,
           set_config('synchronous_commit', 'off', true)
), swept AS (
    DELETE FROM outbox
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND delivered_at < coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3)
      AND NOT EXISTS (
          SELECT FROM webhook_live
          WHERE NOT pg_visible_in_snapshot(outbox.position, seen) OR EXISTS (
              SELECT FROM webhook_delivery AS delivery
              WHERE delivery.event_id = outbox.event_id AND delivery.dead_reason IS NULL))
    RETURNING event_id, position
), forgotten AS (
    DELETE FROM webhook_delivery AS delivery USING swept
    WHERE delivery.event_id = swept.event_id AND EXISTS (SELECT FROM webhook)
), started AS (
    UPDATE history_start
    SET position = (gone.last::text::bigint + 1)::text::xid8
    FROM (SELECT max(position) AS last FROM swept) AS gone
    WHERE gone.last >= history_start.position
)
SELECT is_ours, (SELECT count(*) FROM swept) AS rows FROM turn;

-- name: sweep_inbox
-- The same for messages that a consumer has dealt with more than $3 days ago.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('stretto.sweep.' || current_schema(), 0))
               AS is_ours,
           set_config('synchronous_commit', 'off', true)
), swept AS (
    DELETE FROM inbox
    WHERE (SELECT is_ours FROM turn) AND ctid >= $1::tid AND ctid < $2::tid
      AND received_at < coalesce($4::timestamptz, clock_timestamp()) - make_interval(days => $3)
    RETURNING true
)
SELECT is_ours, (SELECT count(*) FROM swept) AS rows FROM turn;

-- name: sweepable_rows
-- Count what a sweep would delete. $1 is the retention in days, $2 that of events, $3 now.
SELECT (SELECT count(*) FROM attempt
        WHERE settled_at < moment.now - make_interval(days => $1)) AS attempt,
       (SELECT count(*) FROM outbox
        WHERE delivered_at < moment.now - make_interval(days => $2)
          AND NOT EXISTS (
              SELECT FROM webhook
              WHERE disabled_at IS NULL AND served_at >= moment.now - make_interval(days => $2)
                AND (NOT pg_visible_in_snapshot(outbox.position, seen) OR EXISTS (
                    SELECT FROM webhook_delivery AS delivery
                    WHERE delivery.event_id = outbox.event_id
                      AND delivery.dead_reason IS NULL)))) AS outbox,
       (SELECT count(*) FROM inbox
        WHERE received_at < moment.now - make_interval(days => $1)) AS inbox
FROM (SELECT coalesce($3::timestamptz, clock_timestamp()) AS now) AS moment;

-- name: check_attempts
-- G4, G5: attempts that contradict the domain tables.
SELECT group_id,
       CASE WHEN chat_group.group_id IS NULL THEN 'succeeded without a group'
            WHEN status = 'failed' THEN 'failed, but its group exists'
            ELSE 'names another conversation, owner or request than its group' END AS fault
FROM attempt
LEFT JOIN chat_group USING (group_id)
WHERE (status = 'succeeded' AND (chat_group.group_id IS NULL
           OR attempt.conversation_id <> chat_group.conversation_id
           OR attempt.owner_id <> chat_group.owner_id
           OR attempt.fingerprint <> chat_group.fingerprint))
   OR (status = 'failed' AND chat_group.group_id IS NOT NULL)
LIMIT $1;

-- name: check_groups
-- G5: groups that lack a part. The event may be gone once it was delivered and swept: it is missed
-- only if it is younger than the retention, $2 days, and behind the start of history. The retention may
-- have been another one at the sweep; and a restored group has a later transaction than its event had. So
-- a group is behind that start by its own transaction and, where an event there is kept, by its time.
-- $3 is now.
SELECT group_id,
       CASE WHEN conversation.conversation_id IS NULL THEN 'group without its conversation'
            WHEN conversation.kind <> 'group' THEN 'conversation of another kind'
            WHEN owner.user_id IS NULL THEN 'group without its owner as a member'
            ELSE 'group without its event' END AS fault
FROM chat_group
LEFT JOIN conversation USING (conversation_id)
LEFT JOIN conversation_member AS owner
    ON owner.conversation_id = chat_group.conversation_id
   AND owner.user_id = chat_group.owner_id AND owner.role = 'owner'
LEFT JOIN outbox ON outbox.subject = chat_group.group_id
CROSS JOIN (
    SELECT position::text::bigint AS first_transaction,
           pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next_transaction,
           (SELECT created_at FROM outbox WHERE position >= history_start.position
            ORDER BY position LIMIT 1) AS first_at
    FROM history_start
) AS history
WHERE conversation.conversation_id IS NULL OR conversation.kind <> 'group' OR owner.user_id IS NULL
   OR (outbox.event_id IS NULL AND chat_group.created_at
       > coalesce($3::timestamptz, clock_timestamp()) - make_interval(days => $2)
       AND (first_transaction = 0
            OR next_transaction - age(chat_group.xmin) >= first_transaction
            AND chat_group.created_at >= coalesce(first_at, '-infinity')))
LIMIT $1;

-- name: check_conversations
-- G5: group conversations that no group owns.
SELECT conversation_id AS group_id, 'conversation without a group' AS fault
FROM conversation
LEFT JOIN chat_group USING (conversation_id)
WHERE kind = 'group' AND chat_group.group_id IS NULL
LIMIT $1;

-- name: check_events
-- G5, G8: events without a group, a second one of the same kind, or ones that tell of something
-- else. The members may have changed since, so only the owner is looked for.
SELECT subject AS group_id,
       CASE WHEN chat_group.group_id IS NULL THEN 'event without a group'
            WHEN events_count > 1 THEN 'more than one event of a kind'
            WHEN payload ->> 'conversation_id' IS DISTINCT FROM chat_group.conversation_id::text
                THEN 'event tells of another conversation than its group'
            ELSE 'event without its owner among the recipients' END AS fault
FROM (SELECT *, count(*) OVER (PARTITION BY subject, event_type) AS events_count FROM outbox)
    AS event
LEFT JOIN chat_group ON chat_group.group_id = event.subject
WHERE chat_group.group_id IS NULL OR events_count > 1
   OR payload ->> 'conversation_id' IS DISTINCT FROM chat_group.conversation_id::text
   OR NOT chat_group.owner_id = ANY (event.recipients)
LIMIT $1;

-- name: allow_scans
-- Let the rest of the transaction read and join whole tables: what is right for a single key is slow
-- for a check of all.
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true),
       set_config('enable_mergejoin', 'on', true);

-- name: check_counts
-- How much was checked.
SELECT (SELECT count(*) FROM attempt) AS attempts, (SELECT count(*) FROM chat_group) AS groups,
       (SELECT count(*) FROM outbox) AS events;
