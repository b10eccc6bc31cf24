-- Check what was there before the checks, beside reads and writes.
ALTER TABLE chat_group
    VALIDATE CONSTRAINT chat_group_group_kind_check,
    VALIDATE CONSTRAINT chat_group_metadata_check;
ALTER TABLE conversation_member VALIDATE CONSTRAINT conversation_member_role_check;
