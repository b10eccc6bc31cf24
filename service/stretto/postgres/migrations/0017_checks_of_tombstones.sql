-- Check what was there before the checks, beside reads and writes.
ALTER TABLE chat_group
    VALIDATE CONSTRAINT chat_group_failure_code_check,
    VALIDATE CONSTRAINT chat_group_is_whole_or_empty;
