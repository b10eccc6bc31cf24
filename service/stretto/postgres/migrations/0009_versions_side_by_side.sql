-- The database says which versions it serves, and how far a back-fill has come.
-- locks: schema_version ACCESS EXCLUSIVE
ALTER TABLE schema_version
    ADD COLUMN serves_from integer NOT NULL DEFAULT 7,
    ADD COLUMN filled_to   text,
    ADD COLUMN filled_rows bigint  NOT NULL DEFAULT 0;
