-- A host may change a group after its creation, and an event says what has changed.
-- locks: chat_group ACCESS EXCLUSIVE, outbox_delivery ACCESS EXCLUSIVE, outbox ACCESS EXCLUSIVE

-- In the order in which statements of the service lock them.
ALTER TABLE chat_group
    ADD COLUMN changed_at timestamptz, ADD COLUMN revision integer NOT NULL DEFAULT 0;
ALTER TABLE outbox_delivery ADD COLUMN event_type text, ADD COLUMN change jsonb;
ALTER TABLE outbox ADD COLUMN event_type text, ADD COLUMN change jsonb;
