-- Whether the schema can be served.

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
