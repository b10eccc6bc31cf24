-- What a role must bring behind PgBouncer.

-- name: ping_pooled
-- Ask the same behind PgBouncer, and whether the role leads to the schema $1, does not wait for locks
-- for ever, lets no write be cancelled, and has statements see what commits.
SELECT to_regclass(quote_ident($1::text) || '.attempt') IS NOT NULL AS is_migrated,
       current_schema() IS NOT DISTINCT FROM $1::text
           AND current_setting('lock_timeout')::interval > '0'
           AND current_setting('statement_timeout')::interval = '0'
           AND current_setting('default_transaction_isolation') = 'read committed' AS is_set,
       quote_ident(current_user) AS role, quote_ident(current_database()) AS database;
