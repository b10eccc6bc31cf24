-- The way from an owner of due deliveries to the next. Instances of the version before walk on
-- outbox_delivery_by_owner: it stays.
-- runs: concurrently

CREATE INDEX CONCURRENTLY outbox_delivery_walk ON outbox_delivery (reader, owner_id, due_at, event_id)
    WHERE is_due AND dead_reason IS NULL;
