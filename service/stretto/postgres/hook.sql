-- The leader's transaction around a host's hook.

-- name: present_history
-- Read the number of the newest history of events; fail where it has ended with the server's last stop. A
-- pooler gives a transaction another server's session than the one before.
SELECT present_history_1();
