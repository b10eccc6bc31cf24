-- A connection of a host's pool.

-- name: hidden_tables
-- Read which of our tables $1 are hidden by temporary relations of the session, which are found first:
-- what is written would go into them, and with the session. None where pg_temp ends the search_path.
SELECT string_agg(name, ', ' ORDER BY name)
FROM unnest($1::text[]) AS name JOIN pg_class ON pg_class.oid = to_regclass(name)
WHERE pg_my_temp_schema() <> 0 AND relnamespace = pg_my_temp_schema();
