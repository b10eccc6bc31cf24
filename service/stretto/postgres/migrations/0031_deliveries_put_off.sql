-- What becomes due by the time.
-- runs: concurrently

CREATE INDEX CONCURRENTLY outbox_delivery_unmarked ON outbox_delivery (reader, due_at, event_id)
    WHERE NOT is_due AND dead_reason IS NULL;
