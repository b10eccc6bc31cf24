-- Which version of the schema a database has.

-- name: has_version
-- Find out whether the search_path leads to tables of ours.
SELECT to_regclass('schema_version') IS NOT NULL;

-- name: version
-- Read the newest version, and the checksum of the file that made it.
SELECT number, checksum FROM schema_version ORDER BY number DESC LIMIT 1;
