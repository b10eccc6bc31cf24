"""Scripts for pgbench: a conventional protocol, and our own two statements."""

from __future__ import annotations

import re

from loadtests.bench.machinery import BODY

from stretto.postgres.queries import QUERIES

# Two random numbers make an id: pgbench has no UUIDs.
_ID = "(lpad(to_hex(:a::bigint), 16, '0') || lpad(to_hex(:b::bigint), 16, '0'))::uuid"
_VARIABLES = "".join(f"\\set {name} random(1, 9223372036854775806)\n" for name in "ab")
_MEMBERS = ["user-1", *BODY["members"]]
_LITERAL = "{" + ",".join(_MEMBERS) + "}"

CONVENTIONAL = f"""{_VARIABLES}
INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
    VALUES ({_ID}, 'user-1', '0123456789abcdef', {_ID}) ON CONFLICT DO NOTHING RETURNING group_id;
BEGIN;
INSERT INTO conversation (conversation_id) VALUES ({_ID});
INSERT INTO chat_group (group_id, owner_id, name, fingerprint, conversation_id)
    VALUES ({_ID}, 'user-1', '{BODY["name"]}', '0123456789abcdef', {_ID});
INSERT INTO conversation_member (conversation_id, user_id, role) VALUES
    {", ".join(f"({_ID}, '{user}', '{'owner' if user == 'user-1' else 'member'}')" for user in _MEMBERS)};
INSERT INTO outbox (slot, history, event_id, subject, conversation_id, recipients, group_name)
    VALUES (0, 0, {_ID}, {_ID}, {_ID}, '{_LITERAL}', '{BODY["name"]}');
COMMIT;
UPDATE attempt SET status = 'succeeded', conversation_id = {_ID}, settled_at = clock_timestamp()
    WHERE group_id = {_ID};
"""


def own() -> str:
    """Return claim and lead for one request at a time, from the service's statements."""
    claim = ["{id}", "'user-1'", "'0123456789abcdef'::bytea", "{id}"]
    lead = ["{id}", "{id}", "{id}", f"'{BODY['name']}'", "null", f"'{_LITERAL}'", "{id}"]
    lead += ["null"] * 3 + ["null::integer"]
    return _VARIABLES + _filled("claim", claim) + _filled("lead", lead)


def _filled(name: str, values: list[str]) -> str:
    """Fill in an array for each parameter of the batch; the last one is the lock time-out."""

    def array(parameter: re.Match[str]) -> str:
        number = int(parameter[1])
        if number > len(values):
            return "'1s'"
        value = values[number - 1].replace("{id}", _ID)
        return f"ARRAY[{value}]"

    # To pgbench a colon before a name is a variable; our statements have colons only in casts.
    without_comments = re.sub(r"^\s*--.*$", "", QUERIES[name], flags=re.MULTILINE)
    return re.sub(r"\$(\d+)", array, without_comments) + ";\n"
