-- The way from an owner of deliveries to the next.
-- runs: concurrently

CREATE INDEX CONCURRENTLY outbox_delivery_by_owner ON outbox_delivery (reader, owner_id, due_at)
    WHERE dead_reason IS NULL;
