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
