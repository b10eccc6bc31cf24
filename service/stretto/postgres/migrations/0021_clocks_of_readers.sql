-- A reader has a clock of its own, by which its deliveries are due.
-- locks: outbox_reader ACCESS EXCLUSIVE

-- Constant defaults: no row is written. An instance of the version before reads the database's clock:
-- what it puts off while the reader's is ahead is tried earlier, and what waits is sent later.
ALTER TABLE outbox_reader
    ADD COLUMN clock_ahead interval NOT NULL DEFAULT '0',
    ADD COLUMN target_since timestamptz NOT NULL DEFAULT '-infinity';
