-- Deliveries that are put off hold up no turn of those that are due.
-- locks: outbox_delivery ACCESS EXCLUSIVE

-- A constant default: no row is written. What was put off before looks due until a turn has met it; what
-- an instance of the version before puts off, too.
ALTER TABLE outbox_delivery ADD COLUMN is_due boolean NOT NULL DEFAULT true;
