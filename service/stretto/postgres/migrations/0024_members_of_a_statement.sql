-- Members and their conversation are checked by statement, not row by row.
-- locks: conversation_member ACCESS EXCLUSIVE, conversation ACCESS EXCLUSIVE
ALTER TABLE conversation_member DROP CONSTRAINT conversation_member_conversation_id_fkey;

-- Members belong to a conversation that exists, and go with it. A foreign key would say the same, but
-- PostgreSQL checks one row by row: with four members that took a sixth of its time for a creation.
-- These triggers check the rows of a statement together. They mean the tables of this schema, whatever
-- the search_path of who writes leads to, and whatever temporary tables there are.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

CREATE FUNCTION require_conversations() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path FROM CURRENT
    -- As in claim_attempts.
    SET enable_seqscan = off
AS $$
DECLARE
    missing uuid;
BEGIN
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

CREATE TRIGGER conversation_member_has_conversation
    AFTER INSERT ON conversation_member
    REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION require_conversations();

CREATE FUNCTION delete_members() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path FROM CURRENT
    SET enable_seqscan = off
AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM conversation_member;
    ELSE
        DELETE FROM conversation_member
        WHERE conversation_id = ANY (ARRAY(SELECT conversation_id FROM removed));
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER conversation_takes_its_members_along
    AFTER DELETE ON conversation
    REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION delete_members();

CREATE TRIGGER conversation_takes_all_members_along
    AFTER TRUNCATE ON conversation
    FOR EACH STATEMENT EXECUTE FUNCTION delete_members();

CREATE FUNCTION refuse_other_conversation() RETURNS trigger
    LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'conversation % keeps its id and its members', OLD.conversation_id
        USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER conversation_keeps_its_id
    BEFORE UPDATE OF conversation_id ON conversation
    FOR EACH ROW
    WHEN (OLD.conversation_id <> NEW.conversation_id)
    EXECUTE FUNCTION refuse_other_conversation();

CREATE TRIGGER conversation_member_stays
    BEFORE UPDATE OF conversation_id ON conversation_member
    FOR EACH ROW
    WHEN (OLD.conversation_id <> NEW.conversation_id)
    EXECUTE FUNCTION refuse_other_conversation();
