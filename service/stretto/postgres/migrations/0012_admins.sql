-- A member may be an admin.
-- locks: conversation_member ACCESS EXCLUSIVE
ALTER TABLE conversation_member
    DROP CONSTRAINT conversation_member_role_check,
    ADD CONSTRAINT conversation_member_role_check
        CHECK (role IN ('owner', 'admin', 'member')) NOT VALID;
