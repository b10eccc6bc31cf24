-- Adds the trail of attempts. Instances of version 7 go on beside it: they add no rows.

-- attempt_trail: what has happened to attempts beside the normal way, in rows that are only added.
-- A claim, its lead and a replay are the normal way, and add none: the attempt's own row shows
-- them.
--
-- Reclaimed, healed and failed are recorded by the statement that does it, in its commit. What only
-- a process sees is recorded soon after, as far as its bounds allow: a key that was claimed again,
-- a write whose outcome was unknown, a key that came with another body.
CREATE TABLE attempt_trail (
    group_id     uuid        NOT NULL,
    -- The order in which rows were added; times may go back with a clock.
    number       bigint      GENERATED ALWAYS AS IDENTITY,
    happened_at  timestamptz NOT NULL,
    what         text        NOT NULL CHECK (what IN ('reclaimed', 'healed', 'failed',
                                                      'claimed_again', 'unknown', 'other_body')),
    -- The process that did it: its host and its number there.
    instance     text        NOT NULL CHECK (char_length(instance) BETWEEN 1 AND 300),
    -- The claim token that the attempt carried before, where a statement replaced or settled it.
    token_before uuid,
    -- The claim token of the request, and the claimed_at of the attempt's row if it carried that.
    token_after  uuid,
    claimed_at   timestamptz,
    -- Why it failed, or the kind of the error that left the outcome unknown.
    code         text        CHECK (char_length(code) BETWEEN 1 AND 64),
    -- Of the request, where it is traced.
    trace_id     text        CHECK (char_length(trace_id) BETWEEN 1 AND 64),
    PRIMARY KEY (group_id, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02
);

-- append_trail: add a row to a trail, and return whether it could be added. Whatever goes wrong is
-- a warning in the server's log: the statement that reclaims, heals or fails goes on without the
-- row. It waits no longer than this for the table, which only an operator's statement locks:
-- followers have two connections for all keys.
CREATE FUNCTION append_trail_1(
    group_id uuid, happened_at timestamptz, what text, instance text, token_before uuid,
    token_after uuid, claimed_at timestamptz, code text, trace_id text
) RETURNS boolean
    LANGUAGE plpgsql
    SET lock_timeout = '10ms'
AS $$
BEGIN
    INSERT INTO attempt_trail (group_id, happened_at, what, instance, token_before, token_after,
                               claimed_at, code, trace_id)
    VALUES (group_id, happened_at, what, instance, token_before, token_after, claimed_at, code,
            trace_id);
    RETURN true;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'the trail of attempt % lacks "%": %', group_id, what, SQLERRM
        USING ERRCODE = SQLSTATE;
    RETURN false;
END
$$;
