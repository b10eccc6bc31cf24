"""Clients that send every kind of body: small ones, the largest, all alphabets, and wrong ones."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass, field, replace
from typing import Final

from history import CREATED, Wish
from locust import task

from scenarios.client import Client, Request, some_users

# The contract's limits.
NAME_CHARACTERS_MAX: Final = 64
DESCRIPTION_CHARACTERS_MAX: Final = 1024
MEMBERS_MAX: Final = 1000
KEY_CHARACTERS_MAX: Final = 255

# Two, three and four bytes each, combined signs, right to left; outside JSON's escapes.
NAMES: Final = (
    "Équipe à Liège",
    "Группа «Юг»",
    "チーム・東京",
    "فريق العمل",
    "Cafe\u0301 👩‍👩‍👧‍👦",
    "𝄞 Quartet 🎻",
    '"quoted" \\ and / slashed',
)


@dataclass(frozen=True, slots=True)
class Wrong:
    """A request that must be rejected; its key is a fresh one unless `key_field` is set."""

    what: str
    status: int
    body: bytes = b'{"name": "Team"}'
    headers: dict[str, str] = field(default_factory=dict)
    key_field: str | None = None
    """The value of the key's header; empty: no header. No attempt has such a key."""


def _document(**fields: object) -> bytes:
    return json.dumps(fields).encode()


WRONG: Final = (
    Wrong("cut off JSON", 400, b'{"name": "Te'),
    Wrong("no body", 400, b" "),
    Wrong("no object", 400, b"[]"),
    Wrong("no name", 400, _document(members=["bob"])),
    Wrong("empty name", 400, _document(name="")),
    Wrong("long name", 400, _document(name="n" * (NAME_CHARACTERS_MAX + 1))),
    Wrong("control character", 400, _document(name="Te\x00am")),
    Wrong("lone surrogate", 400, b'{"name": "\\ud800"}'),
    Wrong("not UTF-8", 400, b'{"name": "\xff"}'),
    Wrong("field twice", 400, b'{"name": "Team", "name": "Team"}'),
    Wrong("unknown field", 400, _document(name="Team", owner="bob")),
    Wrong(
        "long text", 400, _document(name="T", description="d" * (DESCRIPTION_CHARACTERS_MAX + 1))
    ),
    Wrong("wrong member", 400, _document(name="Team", members=["bob", "zoë"])),
    Wrong(
        "too many members",
        400,
        _document(name="Team", members=[f"user-{n}" for n in range(MEMBERS_MAX + 1)]),
    ),
    Wrong("other type", 415, headers={"Content-Type": "text/plain"}),
    Wrong("no token", 401, headers={"Authorization": "Bearer none"}),
    Wrong("no key", 400, key_field=""),
    Wrong("key with a space", 400, key_field="two words"),
    Wrong("long key", 400, key_field="k" * (KEY_CHARACTERS_MAX + 1)),
)


class MixedBodies(Client):
    """Sends very different bodies, and some that must leave no trace."""

    weight = 2

    @task(6)
    def create_small(self) -> None:
        """A name and nothing else."""
        self.create(Wish(self.owner, str(uuid.uuid4()), "T"), "small body")

    @task(3)
    def create_unicode(self) -> None:
        """Names and descriptions in many scripts."""
        wish = replace(self.new_wish(), name=random.choice(NAMES), description=random.choice(NAMES))
        self.create(wish, "Unicode body")

    @task(1)
    def create_largest(self) -> None:
        """As much as the contract allows, with the longest key."""
        wish = Wish(
            self.owner,
            uuid.uuid4().hex.ljust(KEY_CHARACTERS_MAX, "~"),
            "𝄞" * NAME_CHARACTERS_MAX,
            tuple(f"user-{number}" for number in range(MEMBERS_MAX)),
            "\n" * DESCRIPTION_CHARACTERS_MAX,
        )
        self.create(wish, "largest body")

    @task(4)
    def send_wrong(self) -> None:
        """A request that must be rejected and must leave its key free."""
        wrong = random.choice(WRONG)
        key = str(uuid.uuid4()) if wrong.key_field is None else ""
        given = wrong.key_field if wrong.key_field is not None else key
        headers = ({"Idempotency-Key": given} if given else {}) | wrong.headers
        self.send(
            Request(
                *(f"wrong: {wrong.what}", self.owner, key, wrong.body, headers),
                expected=(wrong.status,),
                due=wrong.status,
            )
        )

    @task(2)
    def reuse_key(self) -> None:
        """Another body under a used key: rejected, and the group stays unchanged."""
        wish = self.new_wish()
        if self.create(wish, "create, key to be reused").status == CREATED:
            other = replace(wish, name="Other", members=some_users())
            reuse = Request.of_wish(other, "wrong: key reused")
            self.send(replace(reuse, expected=(422,), due=422))
