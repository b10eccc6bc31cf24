-- A second way out of the outbox, with a place and a backlog of its own.
CREATE TABLE webhook (
    is_only      boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    seen         pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    served_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_until timestamptz NOT NULL DEFAULT '-infinity',
    disabled_at  timestamptz
);

CREATE TABLE webhook_delivery (
    event_id    uuid        PRIMARY KEY,
    due_at      timestamptz NOT NULL,
    tries       integer     NOT NULL DEFAULT 0 CHECK (tries >= 0),
    dead_reason text        CHECK (char_length(dead_reason) BETWEEN 1 AND 1024)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);

CREATE INDEX webhook_delivery_due ON webhook_delivery (due_at) WHERE dead_reason IS NULL;
