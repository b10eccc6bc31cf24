-- Roles and their rights.

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
