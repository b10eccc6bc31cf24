-- What the readers of the log and its sweep ask: whether all of its partitions are attached. Instances of the
-- version before do not call it.

-- require_whole_log: return true if each slot of the log has its partition attached; else fail. The events of
-- one that is detached are as if they were swept, and the next event of its slot has no place.
CREATE FUNCTION require_whole_log_1() RETURNS boolean
    LANGUAGE plpgsql
    STABLE
AS $$
DECLARE
    detached text;
BEGIN
    SELECT string_agg('outbox_' || slot::text, ', ' ORDER BY slot) INTO detached
    FROM outbox_slot
    WHERE NOT EXISTS (SELECT FROM pg_inherits
                      WHERE inhrelid = to_regclass('outbox_' || slot::text)
                        AND inhparent = 'outbox'::regclass
                        -- One that is being detached concurrently is left out of new plans.
                        AND NOT inhdetachpending);
    IF detached IS NULL THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'detached from outbox: %; "stretto check" says what to run', detached
        USING ERRCODE = 'object_not_in_prerequisite_state';
END
$$;

-- plan_whole_log: the same, when a statement is planned: said to be immutable, it is called then. A plan may be made
-- while a partition is detached, and run once it is attached again, which waits for no statement. A plan that is
-- kept ends with either.
CREATE FUNCTION plan_whole_log_1() RETURNS boolean
    LANGUAGE plpgsql
    IMMUTABLE
AS $$
BEGIN
    RETURN require_whole_log_1();
END
$$;
