-- A group can be deleted; its row stays as a tombstone, as does one of each failed attempt.
-- locks: chat_group ACCESS EXCLUSIVE

-- Checks that are not validated yet: existing rows are not read.
ALTER TABLE chat_group
    ADD COLUMN deleted_at timestamptz,
    ADD COLUMN failure_code text,
    ALTER COLUMN owner_id DROP NOT NULL,
    ALTER COLUMN name DROP NOT NULL,
    ALTER COLUMN fingerprint DROP NOT NULL,
    ALTER COLUMN conversation_id DROP NOT NULL,
    ADD CONSTRAINT chat_group_failure_code_check
        CHECK (char_length(failure_code) BETWEEN 1 AND 64) NOT VALID,
    ADD CONSTRAINT chat_group_is_whole_or_empty CHECK (
        CASE WHEN deleted_at IS NULL AND failure_code IS NULL
             THEN owner_id IS NOT NULL AND name IS NOT NULL AND fingerprint IS NOT NULL
                  AND conversation_id IS NOT NULL
             ELSE num_nonnulls(deleted_at, failure_code) = 1
                  AND num_nonnulls(owner_id, name, description, group_kind, metadata, fingerprint,
                                   conversation_id) = 0 END) NOT VALID;

-- A tombstone never changes again: the database refuses it for every client.
CREATE FUNCTION refuse_change_of_tombstone() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'the row of group % is a tombstone and cannot change', OLD.group_id
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER chat_group_tombstone_is_final
    BEFORE UPDATE ON chat_group
    FOR EACH ROW
    WHEN (OLD.deleted_at IS NOT NULL OR OLD.failure_code IS NOT NULL)
    EXECUTE FUNCTION refuse_change_of_tombstone();

CREATE FUNCTION present_history_1() RETURNS integer
    LANGUAGE plpgsql
AS $$
DECLARE
    newest record;
BEGIN
    SELECT number, server_started_at INTO newest
    FROM outbox_history ORDER BY number DESC LIMIT 1;
    IF newest.server_started_at <> pg_postmaster_start_time() THEN
        RAISE EXCEPTION 'no history of events has begun since the start of the server'
            USING ERRCODE = 'serialization_failure',
                  HINT = 'Repeat the transaction: each running component begins one within a second.';
    END IF;
    RETURN newest.number;
END
$$;

CREATE FUNCTION delete_group_1(id uuid, owner text, new_event_id uuid, trace text) RETURNS boolean
    LANGUAGE plpgsql
    -- As in claim_attempts.
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    doomed record;
    is_whole boolean;
BEGIN
    SELECT * INTO doomed FROM chat_group
    WHERE group_id = id AND (owner IS NULL OR EXISTS (
        SELECT FROM conversation_member AS member
        WHERE member.conversation_id = chat_group.conversation_id
          AND member.user_id = owner AND member.role = 'owner'))
    FOR UPDATE;
    IF NOT FOUND OR doomed.conversation_id IS NULL THEN
        -- An outcome is reported only after a synchronous standby has it, as in look.
        PERFORM CASE WHEN current_setting('synchronous_standby_names') <> ''
                     THEN pg_logical_emit_message(true, 'stretto', '') END
        FROM chat_group WHERE group_id = id AND deleted_at IS NOT NULL;
        RETURN CASE WHEN FOUND THEN false END;
    END IF;
    -- Once more: a change that the lock has waited for may have made others owners.
    PERFORM FROM conversation_member
    WHERE conversation_id = doomed.conversation_id AND user_id = owner AND role = 'owner';
    IF owner IS NOT NULL AND NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- Readers of the log take the commit of a visible event for one that a crash does not undo.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    INSERT INTO outbox (slot, history, event_id, subject, conversation_id, recipients, group_name,
                        group_kind, metadata, trace_context, event_type, change)
    SELECT (SELECT slot FROM outbox_slot ORDER BY number DESC LIMIT 1), present_history_1(),
           new_event_id, id, doomed.conversation_id, users, doomed.name,
           doomed.group_kind, doomed.metadata, trace, 'group.deleted',
           jsonb_build_object('revision', doomed.revision + 1, 'owner_id', doomed.owner_id,
                              'members_count', cardinality(users))
    FROM (SELECT ARRAY(SELECT user_id FROM conversation_member
                       WHERE conversation_id = doomed.conversation_id
                       ORDER BY user_id)) AS members (users);
    is_whole := FOUND;
    UPDATE chat_group
    SET owner_id = NULL, name = NULL, description = NULL, group_kind = NULL, metadata = NULL,
        fingerprint = NULL, conversation_id = NULL, deleted_at = clock_timestamp(),
        changed_at = NULL, revision = doomed.revision + 1
    WHERE group_id = id;
    is_whole := is_whole AND FOUND;
    -- Behind the update, or its foreign key would take the group's row along.
    DELETE FROM conversation WHERE conversation_id = doomed.conversation_id;
    IF NOT (is_whole AND FOUND) THEN
        RAISE EXCEPTION 'a trigger has dropped a change of stretto''s tables: it must return its row'
            USING ERRCODE = 'trigger_protocol_violated';
    END IF;
    DELETE FROM attempt
    WHERE group_id IN (SELECT group_id FROM attempt WHERE group_id = id FOR UPDATE SKIP LOCKED);
    RETURN true;
END
$$;

CREATE FUNCTION deleted_groups_1(
    in_history integer, from_position xid8, running xid8[], groups_max integer
) RETURNS uuid[]
    LANGUAGE sql
    STABLE
    SET enable_seqscan = off
    SET jit = off
AS $$
SELECT ARRAY(
    SELECT subject FROM (
        SELECT subject, event_type FROM outbox
        WHERE history = in_history AND position = ANY (running)
        UNION ALL
        SELECT subject, event_type FROM outbox
        WHERE (history, position) >= (in_history, from_position)) AS event
    WHERE event_type = 'group.deleted' LIMIT groups_max)
$$;
