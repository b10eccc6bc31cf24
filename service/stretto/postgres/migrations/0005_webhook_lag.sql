-- The oldest delivery is found by an index: a lag is the age of what is still owed.
ALTER TABLE webhook_delivery
    ADD COLUMN owed_since timestamptz NOT NULL DEFAULT clock_timestamp();

UPDATE webhook_delivery SET owed_since = outbox.created_at
FROM outbox
WHERE outbox.event_id = webhook_delivery.event_id;

CREATE INDEX webhook_delivery_owed ON webhook_delivery (owed_since) WHERE dead_reason IS NULL;
