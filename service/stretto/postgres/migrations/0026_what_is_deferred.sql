-- What triggers have deferred to the end of a claim, a lead or a deletion runs before its settings are set back:
-- neither loosens its commit, nor stays in the session.

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
    messages text := current_setting('client_min_messages');
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
    -- What triggers have deferred to the commit runs now, or its settings would hold at the commit.
    SET CONSTRAINTS ALL IMMEDIATE;
    -- A SET in a trigger of the operator's would stay in the session, lead what comes next to other tables,
    -- loosen its commit, and hide that the standby lacks it.
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> 'off'
       OR current_setting('client_min_messages') <> messages THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        durability := set_config('synchronous_commit', durability, false);
        durability := set_config('synchronous_commit', 'off', true);
        messages := set_config('client_min_messages', messages, false);
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
    messages text := current_setting('client_min_messages');
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
    -- As in claim_attempts; and a SET LOCAL would loosen this commit. What is deferred waits for a host's hook.
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> durability
       OR current_setting('client_min_messages') <> messages THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        usual := set_config('synchronous_commit', usual, false);
        durability := set_config('synchronous_commit', durability, true);
        messages := set_config('client_min_messages', messages, false);
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

CREATE FUNCTION lead_groups_at_once_1(
    group_ids uuid[], claim_tokens uuid[], conversation_ids uuid[], names text[],
    descriptions text[], recipients_of text[], event_ids uuid[], trace_contexts text[],
    kinds text[], metadata_of text[], admin_counts integer[], patience text
) RETURNS uuid[]
    LANGUAGE plpgsql
AS $$
DECLARE
    led uuid[];
    path text := current_setting('search_path');
    acting text := current_setting('role');
    usual text := current_setting('synchronous_commit');
    durability text := coalesce(nullif(usual, 'off'), 'on');
    messages text := current_setting('client_min_messages');
BEGIN
    led := lead_groups_4(group_ids, claim_tokens, conversation_ids, names, descriptions,
                         recipients_of, event_ids, trace_contexts, kinds, metadata_of,
                         admin_counts, patience);
    -- As in claim_attempts.
    SET CONSTRAINTS ALL IMMEDIATE;
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> durability
       OR current_setting('client_min_messages') <> messages THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        usual := set_config('synchronous_commit', usual, false);
        durability := set_config('synchronous_commit', durability, true);
        messages := set_config('client_min_messages', messages, false);
    END IF;
    RETURN led;
END
$$;

CREATE OR REPLACE PROCEDURE claim_and_lead_4(
    group_ids uuid[], owner_ids text[], fingerprints bytea[], claim_tokens uuid[],
    claim_patience text, conversation_ids uuid[], names text[], descriptions text[],
    recipients_of text[], event_ids uuid[], trace_contexts text[], kinds text[],
    metadata_of text[], admin_counts integer[], lead_patience text,
    INOUT led uuid[]
)
    LANGUAGE plpgsql
AS $$
BEGIN
    led := claim_attempts_1(group_ids, owner_ids, fingerprints, claim_tokens, claim_patience);
    COMMIT;
    led := lead_groups_at_once_1(group_ids, claim_tokens, conversation_ids, names, descriptions,
                                 recipients_of, event_ids, trace_contexts, kinds, metadata_of,
                                 admin_counts, lead_patience);
END
$$;

CREATE FUNCTION delete_group_at_once_1(id uuid, owner text, new_event_id uuid, trace text)
    RETURNS boolean
    LANGUAGE plpgsql
AS $$
DECLARE
    is_deleted boolean;
    path text := current_setting('search_path');
    acting text := current_setting('role');
    usual text := current_setting('synchronous_commit');
    durability text := coalesce(nullif(usual, 'off'), 'on');
    messages text := current_setting('client_min_messages');
BEGIN
    is_deleted := delete_group_1(id, owner, new_event_id, trace);
    IF is_deleted IS NOT TRUE THEN
        RETURN is_deleted;
    END IF;
    -- As in claim_attempts.
    SET CONSTRAINTS ALL IMMEDIATE;
    IF current_setting('search_path') <> path OR current_setting('role') <> acting
       OR current_setting('synchronous_commit') <> durability
       OR current_setting('client_min_messages') <> messages THEN
        path := set_config('search_path', path, false);
        acting := set_config('role', acting, false);
        usual := set_config('synchronous_commit', usual, false);
        durability := set_config('synchronous_commit', durability, true);
        messages := set_config('client_min_messages', messages, false);
    END IF;
    RETURN true;
END
$$;
