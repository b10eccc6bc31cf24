-- The schema's version, and roles and their rights.

-- name: schema_number
-- Read the number of the newest version that the database has.
SELECT max(number) FROM schema_version;

-- name: schema_serves_from
-- Read the number of the oldest schema whose instances may run on this database.
SELECT max(serves_from) FROM schema_version;

-- name: schema_state
-- Find the schema $1 (null: the one of the tables that the search_path leads to) for the current
-- role, which of the tables and routines $2 it lacks, and whether the role may ask for the server's
-- identifier; nothing if there is no such schema.
SELECT nspname::text AS schema, current_user::text AS role,
       ARRAY(SELECT unnest($2::text[])
             EXCEPT (SELECT relname::text FROM pg_class WHERE relnamespace = pg_namespace.oid
                     UNION SELECT proname::text FROM pg_proc WHERE pronamespace = pg_namespace.oid)
             ORDER BY 1) AS missing,
       has_function_privilege('pg_control_system()', 'EXECUTE') AS may_identify
FROM pg_namespace
WHERE CASE WHEN $1::text IS NULL
           THEN oid = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('attempt'))
           ELSE nspname = $1::text END;

-- name: lacking_keys
-- Find of which tables $1 no valid unique index has exactly the columns $2; a table that is missing is
-- reported elsewhere. By the names in the catalogue, where an expression has none: a role's settings
-- (quote_all_identifiers) change what PostgreSQL prints of an index.
SELECT format('%s (%s)', name, columns) AS key
FROM unnest($1::text[], $2::text[]) AS needed (name, columns)
WHERE to_regclass(name) IS NOT NULL AND NOT EXISTS (
    SELECT FROM pg_index
    WHERE indrelid = to_regclass(name) AND indisunique AND indisvalid AND indpred IS NULL
      AND string_to_array(columns, ', ')
          = (SELECT array_agg(attname::text ORDER BY place)
             FROM unnest(indkey) WITH ORDINALITY AS part (number, place)
             LEFT JOIN pg_attribute ON attrelid = indrelid AND attnum = number
             WHERE place <= indnkeyatts)
);

-- name: schema_refusal
-- Read who owns the schema $1, and the current role, where that role may not use the schema.
SELECT pg_get_userbyid(nspowner)::text AS owner, current_user::text AS role
FROM pg_namespace WHERE nspname = $1::text AND NOT has_schema_privilege(oid, 'USAGE');

-- name: grants
-- Write the statements that give the roles $2 the privileges $4 on the tables and routines $3 of the
-- schema $1, and the same kind of privileges on those that later migrations of this role add.
SELECT format('GRANT USAGE ON SCHEMA %I TO %I', $1::text, role)
FROM unnest($2::text[]) AS role
UNION ALL
SELECT format('GRANT %s ON %s %I.%I TO %I', privileges,
              CASE privileges WHEN 'EXECUTE' THEN 'ROUTINE' ELSE 'TABLE' END, $1, name, role)
FROM unnest($3::text[], $4::text[]) AS needed (name, privileges), unnest($2) AS role
UNION ALL
SELECT format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT %s TO %I', $1, privileges, role)
FROM unnest(ARRAY['SELECT, INSERT, UPDATE, DELETE ON TABLES', 'EXECUTE ON ROUTINES']) AS privileges,
     unnest($2) AS role;

-- name: unknown_roles
-- Find those of $1 that are not roles of this server.
SELECT role FROM unnest($1::text[]) AS role
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role);

-- name: lacking_rights
-- Find which of the roles $2 lack the use of the schema $1 (name null), or one of the privileges $4
-- on its tables and routines $3, and who owns what they lack.
SELECT role, NULL AS name, pg_get_userbyid(nspowner)::text AS owner
FROM pg_namespace, unnest($2::text[]) AS role
WHERE nspname = $1::text AND NOT has_schema_privilege(role, pg_namespace.oid, 'USAGE')
UNION
SELECT role, relname::text, pg_get_userbyid(relowner)::text
FROM unnest($3::text[], $4::text[]) AS needed (name, privileges)
JOIN pg_class ON relname = needed.name
JOIN pg_namespace ON pg_namespace.oid = relnamespace AND nspname = $1::text,
     unnest($2) AS role, unnest(string_to_array(privileges, ', ')) AS privilege
WHERE NOT has_table_privilege(role, pg_class.oid, privilege)
UNION
SELECT role, proname::text, pg_get_userbyid(proowner)::text
FROM unnest($3) AS needed (name)
JOIN pg_proc ON proname = needed.name
JOIN pg_namespace ON pg_namespace.oid = pronamespace AND nspname = $1::text,
     unnest($2) AS role
WHERE NOT has_function_privilege(role, pg_proc.oid, 'EXECUTE')
ORDER BY role, name;
