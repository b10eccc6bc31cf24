-- What a session has to show. First, what the statements of creations, deletions and of the log ask before they touch a table: whether all of
-- ours are found in one schema. Instances of the version before do not call it.

CREATE FUNCTION require_home_1(home text, value text) RETURNS text
    LANGUAGE plpgsql
    STABLE
AS $$
BEGIN
    IF home IS NULL
       OR pg_table_is_visible(to_regclass(home || '.attempt'))
          AND pg_table_is_visible(to_regclass(home || '.chat_group'))
          AND pg_table_is_visible(to_regclass(home || '.conversation'))
          AND pg_table_is_visible(to_regclass(home || '.conversation_member'))
          AND pg_table_is_visible(to_regclass(home || '.history_start'))
          AND pg_table_is_visible(to_regclass(home || '.outbox'))
          AND pg_table_is_visible(to_regclass(home || '.outbox_history'))
          AND pg_table_is_visible(to_regclass(home || '.outbox_present'))
          AND pg_table_is_visible(to_regclass(home || '.outbox_server'))
          AND pg_table_is_visible(to_regclass(home || '.outbox_slot')) THEN
        RETURN value;
    END IF;
    RAISE EXCEPTION 'the session leads to tables of another schema than %', home
        USING ERRCODE = 'invalid_schema_name';
END
$$;

-- What the statements of upkeep ask that would take a row which a policy hides for one that is lost.

CREATE FUNCTION require_all_rows_1(VARIADIC tables text[]) RETURNS boolean
    LANGUAGE plpgsql
    STABLE
AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY tables LOOP
        IF row_security_active(name) THEN
            RAISE EXCEPTION 'row-level security applies to %', name
                USING ERRCODE = 'insufficient_privilege';
        END IF;
    END LOOP;
    RETURN true;
END
$$;
