-- Owners take turns with their deliveries.
-- locks: outbox_delivery ACCESS EXCLUSIVE

-- A constant default: no row is written. What waits, and what an instance of the version before enrols,
-- counts as one owner's.
ALTER TABLE outbox_delivery ADD COLUMN owner_id text NOT NULL DEFAULT '';
