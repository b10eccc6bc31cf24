"""What is signed, what an answer means, and when it is tried again."""

from __future__ import annotations

import base64
from uuid import UUID

import pytest

from stretto.events.log import CommittedEvent
from stretto.targets.delivery import Delivery, PutOff
from stretto.webhook.rules import (
    JITTER_RATIO_MAX,
    RETRY_SECONDS,
    THROTTLE_SECONDS,
    THROTTLE_SECONDS_MAX,
    THROTTLE_SECONDS_MIN,
    Answer,
    Answered,
    Blocked,
    Failed,
    Gone,
    NotCalled,
    NotConnected,
    Sent,
    Throttled,
    Unanswered,
    Unreached,
    Verdict,
    WebhookSettings,
    judge,
    parse_secrets,
    put_off,
    sign,
)


def delivery_of(tries: int) -> Delivery:
    """Return an event that has failed so often."""
    return Delivery(CommittedEvent(UUID(int=1), (), b""), tries)


def secret_of(size: int) -> str:
    """Return a secret of so many bytes, as it is written."""
    return "whsec_" + base64.b64encode(bytes(size)).decode()


def test_the_published_example_is_signed_as_published() -> None:
    """The one of the Standard Webhooks libraries, which receivers verify with."""
    (secret,) = parse_secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    signed = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == sign([secret], *signed)
    other = sign([b"another secret"], *signed)
    assert other != signature
    assert f"{signature} {other}" == sign([secret, b"another secret"], *signed)


@pytest.mark.parametrize(
    "text",
    [secret_of(23), secret_of(65), "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_hidden!", "whsec_ä"],
)
def test_a_secret_of_another_form_is_refused_and_not_repeated(text: str) -> None:
    """Too short, too long, without its prefix, no base64; also beside a good one."""
    with pytest.raises(ValueError, match="must be whsec_ and 24 to 64 bytes") as error:
        parse_secrets(f"{secret_of(24)} {text}")
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_settings_do_not_show_their_secrets() -> None:
    """The address may be one, too."""
    settings = WebhookSettings(webhook_url="https://x/hidden", webhook_secret=(b"hidden",))
    assert "hidden" not in repr(settings)


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        (Sent(), Answered(200)),
        (Sent(), Answered(299)),
        (Sent(), Answered(204, 7.0)),
        (Failed("answered 199"), Answered(199)),
        (Failed("answered 301"), Answered(301)),
        (Failed("answered 404"), Answered(404, 7.0)),
        (Failed("answered 500"), Answered(500)),
        (Failed("answered 503"), Answered(503)),
        (Throttled(7.0), Answered(503, 7.0)),
        (Throttled(7.0), Answered(429, 7.0)),
        (Throttled(THROTTLE_SECONDS), Answered(429)),
        (Throttled(THROTTLE_SECONDS_MAX), Answered(429, float("inf"))),
        (Throttled(THROTTLE_SECONDS_MIN), Answered(429, 0.0)),
        (Throttled(THROTTLE_SECONDS_MIN), Answered(503, 0.0)),
        (Gone(), Answered(410)),
        (Failed("TimeoutError"), Unanswered("TimeoutError")),
        (Unreached("Connection refused"), NotConnected("Connection refused")),
        (Blocked("address is not public"), NotCalled()),
    ],
)
def test_an_answer_means(expected: Verdict, answer: Answer) -> None:
    """As the specification has it."""
    assert expected == judge(answer)


@pytest.mark.parametrize(("draw", "ratio"), [(0.0, 1.0), (1.0, 1.0 + JITTER_RATIO_MAX)])
def test_a_pause_is_drawn_from_the_schedule_to_a_fifth_more(
    draw: float, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed together does not come back together."""
    monkeypatch.setattr("random.uniform", lambda low, high: low + draw * (high - low))
    put = put_off(
        delivery_of(1),
        Failed("x"),
    )
    assert RETRY_SECONDS[1] * ratio == put.seconds


def test_what_fails_is_put_off_by_the_schedule_until_it_dies() -> None:
    """With some chance, so that not all of them come back together."""
    for tries, pause in enumerate(RETRY_SECONDS):
        put = put_off(delivery_of(tries), Failed("x"))
        assert (True, None) == (put.is_try, put.dead_reason)
        assert pause <= put.seconds <= pause * (1 + JITTER_RATIO_MAX)
    last = delivery_of(len(RETRY_SECONDS))
    assert PutOff(UUID(int=1), is_try=True, dead_reason="x") == put_off(last, Failed("x"))
    # A failure that is not the event's costs it no try, however often.
    assert PutOff(UUID(int=1), 7.0) == put_off(last, Throttled(7.0))
    assert PutOff(UUID(int=1)) == put_off(last, Gone()) == put_off(last, Unreached("x"))
