"""Keys that another transaction holds up are kept apart for a bounded time, and in bounded number."""

from __future__ import annotations

from uuid import UUID

from stretto.creation.contention import KEY_SECONDS, KEYS_MAX, ContendedKeys

ONE, OTHER = UUID(int=1), UUID(int=2)


def test_a_key_is_kept_apart_for_as_long_as_a_transaction_may_run() -> None:
    """Since it was held up last."""
    now = 100.0
    keys = ContendedKeys(lambda: now)
    keys.add(ONE)
    assert (True, False) == (ONE in keys, OTHER in keys)
    now += KEY_SECONDS - 1
    assert ONE in keys
    keys.add(ONE)
    now += KEY_SECONDS - 1
    assert ONE in keys
    now += 1
    assert ONE not in keys


def test_a_key_that_was_claimed_is_kept_apart_no_longer() -> None:
    """Others are."""
    keys = ContendedKeys(lambda: 0.0)
    keys.add(ONE)
    keys.add(OTHER)
    keys.discard(ONE)
    keys.discard(ONE)
    assert (False, True, 1) == (ONE in keys, OTHER in keys, len(keys))


def test_of_too_many_keys_the_oldest_goes() -> None:
    """What was held up last is what may be held up again."""
    keys = ContendedKeys(lambda: 0.0)
    for number in range(KEYS_MAX + 1):
        keys.add(UUID(int=number))
    assert (KEYS_MAX, False, True) == (len(keys), UUID(int=0) in keys, UUID(int=1) in keys)


def test_keys_whose_time_is_over_are_forgotten() -> None:
    """Most are settled by others: nobody would ever claim them again."""
    now = 100.0
    keys = ContendedKeys(lambda: now)
    keys.add(ONE)
    now += 1
    keys.add(OTHER)
    now += KEY_SECONDS - 1
    keys.drop_stale()
    assert (1, True) == (len(keys), OTHER in keys)
