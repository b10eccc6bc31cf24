-- What a connection, or a host's pool, must be like.

-- name: ping
-- Ask whether the database answers and has our tables, whether it refuses writes (as `is_read_only`), what
-- its commits wait for, in which of the tables $1 policies may hide rows from the role, and which of them are
-- partitions of the log and detached, and how. It is one statement: where each answer comes late, the database is there
-- all the same.
SELECT to_regclass('attempt') IS NOT NULL AS is_migrated,
       current_setting('transaction_read_only')::boolean AS is_read_only,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('client_min_messages') AS client_min_messages,
       (SELECT string_agg(name, ', ' ORDER BY name) FROM unnest($1::text[]) AS name
        WHERE row_security_active(to_regclass(name))) AS filtered,
       (SELECT string_agg(name || CASE WHEN to_regclass(name) IS NULL THEN ' dropped'
                                       WHEN inhdetachpending THEN ' pending' ELSE '' END, ', ' ORDER BY name)
        FROM unnest($1::text[]) AS name
        LEFT JOIN pg_inherits ON inhrelid = to_regclass(name) AND inhparent = to_regclass('outbox')
        WHERE name ~ '^outbox_[0-9]+$' AND inhdetachpending IS DISTINCT FROM false) AS detached,
       quote_ident(current_schema()) AS schema, quote_ident(current_user) AS role, quote_ident(current_database()) AS database;

-- name: ping_pool
-- Ask whether the search_path of a host's pool leads to our tables $1 and routines $2, all in one
-- schema, and which one, and which schemas have them; and whether the pool itself has its sessions begin
-- transactions that only read. What is missing is not reported here: the schema's version is checked later.
SELECT (SELECT count(DISTINCT namespace) = 1 AND bool_or(name = 'conversation_member')
        FROM (SELECT name, relnamespace FROM unnest($1::text[]) AS name
              JOIN pg_class ON pg_class.oid = to_regclass(name)
              UNION SELECT name, pronamespace FROM unnest($2::text[]) AS name
              JOIN pg_proc ON pg_proc.oid = to_regproc(name)) AS found (name, namespace)) AS is_led,
       (SELECT relnamespace::regnamespace::text FROM pg_class
        WHERE oid = to_regclass('conversation_member')) AS schema,
       current_setting('search_path') AS search_path,
       (SELECT string_agg(quote_ident(schemaname), ', ' ORDER BY schemaname) FROM pg_tables
        WHERE tablename = 'conversation_member') AS schemas,
       (SELECT setting::boolean AND source = 'client' FROM pg_show_all_settings()
        WHERE name = 'default_transaction_read_only') AS is_read_only,
       pg_backend_pid() AS backend;

-- name: left_role
-- Return a row where the session has another role than the one that has connected; of nothing, which no
-- codec of the host's reads.
SELECT NULL FROM pg_stat_get_activity(pg_backend_pid())
WHERE usesysid::regrole::text <> quote_ident(current_user);

-- name: leave_setting
-- Set a setting that has no other use to $1 for the session; return which process of the server has it.
SELECT pg_backend_pid() FROM set_config('stretto.left', $1, false);

-- name: left_setting
-- Read that setting, and which process of the server has it.
SELECT current_setting('stretto.left', true) AS setting, pg_backend_pid() AS backend;

-- name: ping_codecs
-- Return a value of each type that our statements take or return, as the driver reads it, and
-- whether the values that were sent have arrived unchanged. A role's settings (array_nulls,
-- standard_conforming_strings) change how some texts are read: those values are made without one.
SELECT '00000000-0000-0000-0000-000000000007'::uuid AS uuid,
       '{00000000-0000-0000-0000-000000000007}'::uuid[] AS "uuid[]",
       'a'::text AS text, ARRAY['a', NULL] AS "text[]", 'a'::name AS name,
       '{a}'::name[] AS "name[]", decode('61', 'hex') AS bytea,
       ARRAY[decode('61', 'hex')] AS "bytea[]",
       '{"a": 1}'::json AS json,
       '2000-01-02 03:04:05Z'::timestamptz AS timestamptz, true AS bool,
       '{true}'::bool[] AS "bool[]", '(0,7)'::tid AS tid, '0/7'::pg_lsn AS pg_lsn,
       7::int4 AS int4, '{7}'::int4[] AS "int4[]", 7::int8 AS int8,
       7.5::float8 AS float8, '{7.5}'::float8[] AS "float8[]", '7'::xid8 AS xid8,
       ($1::uuid, $2::uuid[], $3::text, $4::text[], $5::bytea, $6::bytea[], $7::timestamptz,
        $8::bool)
       = ('00000000-0000-0000-0000-000000000007'::uuid,
          '{00000000-0000-0000-0000-000000000007}'::uuid[], 'a'::text, ARRAY['a', NULL],
          decode('61', 'hex'), ARRAY[decode('61', 'hex')], '2000-01-02 03:04:05Z'::timestamptz,
          true)
       AND ($9::int4, $10::int4[], $11::int8, $12::float8, $13::float8[], $14::xid8, $15::bool[],
            $16::tid)
       = (7::int4, '{7}'::int4[], 7::int8, 7.5::float8, '{7.5}'::float8[], '7'::xid8,
          '{true}'::bool[], '(0,7)'::tid) AS is_sent;
