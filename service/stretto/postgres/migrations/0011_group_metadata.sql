-- A group has a kind and metadata of its host's.
-- locks: chat_group ACCESS EXCLUSIVE

-- No default: existing rows are not written. Checks that are not validated yet: they are not read.
ALTER TABLE chat_group
    ADD COLUMN group_kind text,
    ADD COLUMN metadata jsonb,
    ADD CONSTRAINT chat_group_group_kind_check
        CHECK (char_length(group_kind) BETWEEN 1 AND 64) NOT VALID,
    ADD CONSTRAINT chat_group_metadata_check
        CHECK (jsonb_typeof(metadata) = 'object' AND octet_length(metadata::text) <= 8192)
        NOT VALID;
