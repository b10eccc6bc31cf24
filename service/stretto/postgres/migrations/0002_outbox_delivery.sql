-- The outbox gets what the relay needs: a place in history, a time to be taken, an end as dead letter.
ALTER TABLE outbox
    ADD COLUMN position xid8 NOT NULL DEFAULT pg_current_xact_id(),
    ADD COLUMN due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN tries integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    ADD COLUMN dead_reason text CHECK (char_length(dead_reason) BETWEEN 1 AND 1024),
    ADD CONSTRAINT outbox_delivered_is_not_dead CHECK (delivered_at IS NULL OR dead_reason IS NULL);

CREATE INDEX outbox_waiting ON outbox (position) WHERE delivered_at IS NULL AND dead_reason IS NULL;

CREATE INDEX outbox_by_position ON outbox (position);

-- Who resumes before what was swept must be told.
CREATE TABLE history_start (
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    position xid8    NOT NULL DEFAULT '0'
);
INSERT INTO history_start DEFAULT VALUES;
