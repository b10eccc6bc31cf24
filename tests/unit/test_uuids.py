from __future__ import annotations

import copy
import pickle
import uuid
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from stretto.uuids import uuid4, uuid5, uuid7, uuid_of


@given(st.binary(min_size=16, max_size=16))
def test_a_uuid_is_the_one_that_the_standard_library_makes(content: bytes) -> None:
    """By class, hash and copy, too: it is compared with those that the driver returns."""
    made, expected = uuid_of(content), UUID(bytes=content)

    assert type(made) is UUID
    assert (made, hash(made), str(made), made.is_safe) == (
        *(expected, hash(expected), str(expected)),
        expected.is_safe,
    )
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == expected


@given(st.uuids(), st.text(max_size=9))
def test_a_name_has_the_uuid_that_the_standard_library_gives_it(namespace: UUID, name: str) -> None:
    """The ids of groups and events are such names."""
    assert uuid5(namespace, name) == uuid.uuid5(namespace, name)


def test_random_uuids_differ() -> None:
    """They are the tokens of claims."""
    made = {uuid4() for _ in range(1_000)}

    assert len(made) == 1_000
    assert {(each.version, each.variant) for each in made} == {(4, uuid.RFC_4122)}


def test_uuids_by_time_grow() -> None:
    """They order conversations by age."""
    made = [uuid7() for _ in range(1_000)]

    assert made == sorted({*made})
    assert {(each.version, each.variant) for each in made} == {(7, uuid.RFC_4122)}
