-- What a session must be like, whatever its role says.

-- name: ping_session
-- Read the encodings of the database and of the session, the isolation of its transactions, and
-- what their commits wait for.
SELECT current_setting('server_encoding') AS server_encoding,
       current_setting('client_encoding') AS client_encoding,
       current_setting('default_transaction_isolation') AS isolation,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('client_min_messages') AS client_min_messages,
       quote_ident(current_user) AS role, quote_ident(current_database()) AS database;

-- name: ping_pooled
-- Ask behind PgBouncer whether the schema $1 has our tables, and whether the role brings the
-- settings that a session needs: this schema, READ COMMITTED, a bounded wait for locks, no bound on a
-- write, and no JIT: the driver looks types up in each new connection, which compiling makes take
-- seconds. Also read whether the server refuses writes, what its commits wait for, in which of the
-- tables $2 policies may hide rows from the role, and which of them are partitions of the log and detached, and how.
SELECT to_regclass(quote_ident($1::text) || '.attempt') IS NOT NULL AS is_migrated,
       current_setting('transaction_read_only')::boolean AS is_read_only,
       current_schema() IS NOT DISTINCT FROM $1::text
           AND current_setting('lock_timeout')::interval > '0'
           AND current_setting('statement_timeout')::interval = '0'
           AND NOT current_setting('jit')::boolean
           AND current_setting('default_transaction_isolation') = 'read committed' AS is_set,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('client_min_messages') AS client_min_messages,
       (SELECT string_agg(name, ', ' ORDER BY name) FROM unnest($2::text[]) AS name
        WHERE row_security_active(to_regclass(format('%I.%I', $1, name)))) AS filtered,
       (SELECT string_agg(name || CASE WHEN to_regclass(format('%I.%I', $1, name)) IS NULL THEN ' dropped'
                                       WHEN inhdetachpending THEN ' pending' ELSE '' END, ', ' ORDER BY name)
        FROM unnest($2::text[]) AS name
        LEFT JOIN pg_inherits ON inhrelid = to_regclass(format('%I.%I', $1, name))
              AND inhparent = to_regclass(format('%I.outbox', $1))
        WHERE name ~ '^outbox_[0-9]+$' AND inhdetachpending IS DISTINCT FROM false) AS detached,
       quote_ident($1) AS schema, quote_ident(current_user) AS role, quote_ident(current_database()) AS database;
