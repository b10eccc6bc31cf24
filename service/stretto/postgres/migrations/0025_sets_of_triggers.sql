-- A trigger's SET does not stay in the session of a writer or of a deletion, nor loosen its commit, and the
-- triggers that check members by statement follow a schema that was renamed. The present of the log says
-- whether it was read on a standby.

CREATE OR REPLACE FUNCTION require_conversations() RETURNS trigger
    LANGUAGE plpgsql
    -- Whatever is set within lasts as long as the function.
    SET search_path = pg_catalog, pg_temp
    -- As in claim_attempts.
    SET enable_seqscan = off
AS $$
DECLARE
    missing uuid;
    path text;
BEGIN
    path := set_config('search_path', quote_ident(TG_TABLE_SCHEMA) || ', pg_temp', true);
    -- A subquery, which is no join: it uses the index, whatever a plan expects of the tables.
    SELECT conversation_id INTO missing
    FROM (SELECT DISTINCT conversation_id FROM added) AS added
    WHERE (SELECT true FROM conversation
           WHERE conversation.conversation_id = added.conversation_id) IS NULL
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'conversation % does not exist, so it can have no members', missing
            USING ERRCODE = 'foreign_key_violation',
                  SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, CONSTRAINT = TG_NAME;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION delete_members() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
AS $$
DECLARE
    path text;
BEGIN
    path := set_config('search_path', quote_ident(TG_TABLE_SCHEMA) || ', pg_temp', true);
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM conversation_member;
    ELSE
        DELETE FROM conversation_member
        WHERE conversation_id = ANY (ARRAY(SELECT conversation_id FROM removed));
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE VIEW outbox_present AS
SELECT newest.number AS history, bound.next_position, below.running,
       format('%s:%s:%s', coalesce(below.running[1], bound.next_position), bound.next_position,
              array_to_string(below.running, ','))::pg_snapshot AS seen,
       -- The next event begins another history.
       newest.server_started_at <> pg_postmaster_start_time() AS is_ended,
       (SELECT json_object_agg(number, id) FROM outbox_history) AS histories,
       history_start.history AS start_history,
       history_start.position::text::bigint AS start_position,
       CASE WHEN history_start.truncations = (SELECT max(number) - count(nullif(number, 0))
                                              FROM outbox_slot)
            THEN history_start.running::text::bigint[] ELSE '{}' END AS start_running,
       -- It knows of no running transactions, so a place there would cover what nobody has read.
       pg_is_in_recovery() AS is_standby
FROM (SELECT * FROM outbox_history ORDER BY number DESC LIMIT 1) AS newest
CROSS JOIN history_start
-- OFFSET has each of them computed once.
CROSS JOIN LATERAL (
    SELECT greatest(
        newest.position::text::bigint,
        CASE WHEN history_start.history = newest.number
             THEN history_start.position::text::bigint END,
        (SELECT position::text::bigint + 1 FROM outbox WHERE outbox.history = newest.number
         ORDER BY outbox.history DESC, outbox.position DESC LIMIT 1)) AS next_position
    OFFSET 0
) AS bound
CROSS JOIN LATERAL (
    SELECT ARRAY(SELECT xip::text::bigint FROM pg_snapshot_xip(pg_current_snapshot()) AS xip
                 WHERE xip::text::bigint < bound.next_position ORDER BY xip) AS running
    OFFSET 0
) AS below;

CREATE OR REPLACE FUNCTION claim_attempts_1(
    group_ids uuid[], owner_ids text[], fingerprints bytea[], claim_tokens uuid[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
    -- Rows are found by index: a pooler's sessions lack our settings, and a plan that was made while a
    -- table was small would scan it ever after. Any values have the same plan: a creation alone would
    -- be planned anew each time, which took a third of its time. Not for the session: then
    -- pg_stat_statements counts only its first CALL.
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    won uuid[];
    -- Of the session.
    path text := current_setting('search_path');
    acting text := current_setting('role');
    durability text := current_setting('synchronous_commit');
BEGIN
    -- Assigned, which runs no query: PERFORM would.
    patience := set_config('lock_timeout', patience, true);
    patience := set_config('synchronous_commit', 'off', true);
    WITH claimed AS (
        INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
        SELECT claim.group_id, claim.owner_id, claim.fingerprint, claim.claim_token
        FROM unnest(group_ids, owner_ids, fingerprints, claim_tokens)
            AS claim (group_id, owner_id, fingerprint, claim_token)
        WHERE NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = claim.group_id)
          AND NOT EXISTS (SELECT FROM attempt WHERE attempt.group_id = claim.group_id)
        ON CONFLICT DO NOTHING
        RETURNING claim_token
    )
    SELECT array_agg(claim_token) INTO won FROM claimed;
    -- A SET in a trigger of the operator's would stay in the session, lead what comes next to other tables,
    -- and loosen its commit.
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> 'off' THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        durability := set_config('synchronous_commit', durability, false);
        durability := set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN won;
END
$$;

CREATE OR REPLACE FUNCTION lead_groups_4(
    group_ids uuid[], claim_tokens uuid[], conversation_ids uuid[], names text[],
    descriptions text[], recipients_of text[], event_ids uuid[], trace_contexts text[],
    kinds text[], metadata_of text[], admin_counts integer[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET jit = off
    SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    led uuid[];
    is_whole boolean;
    present record;
    path text := current_setting('search_path');
    acting text := current_setting('role');
    usual text := current_setting('synchronous_commit');
    durability text;
BEGIN
    -- What is acknowledged is flushed, whatever the server's or the role's setting is: a reload changes
    -- living sessions, even between a statement and its commit, but not what was set for a transaction.
    patience := set_config('lock_timeout', patience, true);
    durability := set_config('synchronous_commit', coalesce(nullif(usual, 'off'), 'on'), true);
    -- Where events go. A pooler may have changed to a promoted server under a living connection.
    SELECT (SELECT slot FROM outbox_slot ORDER BY outbox_slot.number DESC LIMIT 1) AS slot,
           history.number, history.server_started_at INTO present
    FROM outbox_history AS history ORDER BY history.number DESC LIMIT 1;
    IF present.server_started_at <> pg_postmaster_start_time() THEN
        INSERT INTO outbox_history (number, server_started_at, table_id)
        SELECT present.number + 1, started_at, table_id FROM outbox_server
        -- Another lead may have begun it meanwhile.
        ON CONFLICT (number) DO UPDATE SET number = EXCLUDED.number
        RETURNING number INTO present.number;
    END IF;
    WITH write AS (
        SELECT group_id, claim_token, conversation_id, name, description, recipients::text[],
               event_id, trace_context, kind, metadata::jsonb, admins
        -- An array that is null counts as one of nulls.
        FROM unnest(group_ids, claim_tokens, conversation_ids, names, descriptions, recipients_of,
                    event_ids, trace_contexts, kinds, metadata_of, admin_counts)
            AS write (group_id, claim_token, conversation_id, name, description, recipients,
                      event_id, trace_context, kind, metadata, admins)
    ), settled AS (
        UPDATE attempt
        SET status = 'succeeded', conversation_id = write.conversation_id,
            settled_at = clock_timestamp()
        FROM write
        WHERE attempt.group_id = write.group_id
          AND attempt.claim_token = write.claim_token
          AND attempt.status = 'pending'
          -- A group whose attempt was swept must not fail the batch: that key heals.
          AND NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = write.group_id)
        RETURNING attempt.owner_id, attempt.fingerprint, write.*
    ), new_conversation AS (
        INSERT INTO conversation (conversation_id) SELECT conversation_id FROM settled
    ), new_group AS (
        INSERT INTO chat_group (group_id, owner_id, name, description, group_kind, metadata,
                                fingerprint, conversation_id)
        SELECT group_id, owner_id, name, description, kind, metadata, fingerprint, conversation_id
        FROM settled
        RETURNING true
    ), new_member AS (
        INSERT INTO conversation_member (conversation_id, user_id, role)
        SELECT conversation_id, user_id,
               CASE WHEN user_id = owner_id THEN 'owner'
                    WHEN place <= admins + 1 THEN 'admin' ELSE 'member' END
        -- Admins stand right behind the owner. Both columns are made row by row: a function in FROM
        -- would first write all of its rows to a store.
        FROM (SELECT conversation_id, owner_id, admins, unnest(recipients) AS user_id,
                     generate_series(1, cardinality(recipients)) AS place
              FROM settled) AS recipient
        RETURNING true
    ), new_event AS (
        INSERT INTO outbox (slot, history, event_id, subject, conversation_id, recipients,
                            group_name, group_kind, metadata, trace_context)
        SELECT present.slot, present.number, event_id, group_id, conversation_id, recipients, name,
               kind, metadata, trace_context
        FROM settled
        RETURNING true
    )
    SELECT array_agg(claim_token),
           count(*) = (SELECT count(*) FROM new_group)
               AND count(*) = (SELECT count(*) FROM new_event)
               AND coalesce(sum(cardinality(recipients)), 0) = (SELECT count(*) FROM new_member)
    INTO led, is_whole FROM settled;
    -- As in claim_attempts; and a SET LOCAL would loosen this commit.
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> durability THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        usual := set_config('synchronous_commit', usual, false);
        durability := set_config('synchronous_commit', durability, true);
    END IF;
    -- An attempt that could be led and was not is a dropped row as well. A condition of its own: one that
    -- holds a query is run as a query even where its first half decides.
    IF is_whole AND coalesce(cardinality(led), 0) < cardinality(group_ids) THEN
        is_whole := NOT EXISTS (
            SELECT FROM unnest(group_ids, claim_tokens) AS write (group_id, claim_token)
                JOIN attempt USING (group_id, claim_token)
            WHERE attempt.status = 'pending'
              AND NOT EXISTS (SELECT FROM chat_group
                              WHERE chat_group.group_id = attempt.group_id));
    END IF;
    IF NOT is_whole THEN
        RAISE EXCEPTION 'a trigger has dropped a row of stretto''s tables: it must return NEW'
            USING ERRCODE = 'trigger_protocol_violated';
    END IF;
    RETURN led;
END
$$;

CREATE OR REPLACE FUNCTION delete_group_1(id uuid, owner text, new_event_id uuid, trace text) RETURNS boolean
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
    path text := current_setting('search_path');
    acting text := current_setting('role');
    durability text := current_setting('synchronous_commit');
BEGIN
    SELECT * INTO doomed FROM chat_group
    WHERE group_id = id AND (owner IS NULL OR EXISTS (
        SELECT FROM conversation_member AS member
        WHERE member.conversation_id = chat_group.conversation_id
          AND member.user_id = owner AND member.role = 'owner'))
    FOR UPDATE;
    IF NOT FOUND OR doomed.conversation_id IS NULL THEN
        -- This too is reported only after a synchronous standby has it, as in look.
        IF current_setting('synchronous_standby_names') <> '' THEN
            PERFORM pg_logical_emit_message(true, 'stretto', '');
        END IF;
        RETURN (SELECT false FROM chat_group WHERE group_id = id AND deleted_at IS NOT NULL);
    END IF;
    -- Once more: a change that the lock has waited for may have made others owners.
    PERFORM FROM conversation_member
    WHERE conversation_id = doomed.conversation_id AND user_id = owner AND role = 'owner';
    IF owner IS NOT NULL AND NOT FOUND THEN
        RETURN NULL;
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
    is_whole := is_whole AND FOUND;
    DELETE FROM attempt
    WHERE group_id IN (SELECT group_id FROM attempt WHERE group_id = id FOR UPDATE SKIP LOCKED);
    IF NOT is_whole THEN
        RAISE EXCEPTION 'a trigger has dropped a change of stretto''s tables, or led it to others by a SET: it'
                        ' must return its row, and its function needs a SET clause instead'
            USING ERRCODE = 'trigger_protocol_violated';
    END IF;
    -- As in claim_attempts.
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> durability THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        durability := set_config('synchronous_commit', durability, false);
    END IF;
    -- Readers of the log take the commit of a visible event for one that a crash does not undo.
    durability := set_config('synchronous_commit', coalesce(nullif(durability, 'off'), 'on'), true);
    RETURN true;
END
$$;
