-- What a session must be like, whatever its role says.

-- name: ping_session
-- Ask for the encodings of the database and of the session, and what its transactions see.
SELECT current_setting('server_encoding') AS server_encoding,
       current_setting('client_encoding') AS client_encoding,
       current_setting('default_transaction_isolation') AS isolation,
       quote_ident(current_user) AS role, quote_ident(current_database()) AS database;
