-- A reader of the log may stand within a transaction that has more events than a page.
-- locks: outbox_reader ACCESS EXCLUSIVE

ALTER TABLE outbox_reader ADD COLUMN parts text NOT NULL DEFAULT '';
