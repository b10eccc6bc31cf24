-- A new connection: does it take writes, and how long may a transaction be?

-- name: is_read_only
-- Ask whether the server refuses writes of this session: a standby, or
-- default_transaction_read_only.
SELECT current_setting('transaction_read_only')::boolean AS is_read_only;

-- name: bound_transactions
-- Have the session's transactions end after $1 (0: never), where the server knows such a bound.
SELECT set_config(name, $1, false) FROM pg_settings WHERE name = 'transaction_timeout';
