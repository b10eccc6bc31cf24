"""What `stretto bus` shows of the streams on NATS; it changes none."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from nats.js.errors import NotFoundError

from stretto.nats.deployment import missing_subjects, whose
from stretto.nats.requests import answered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nats.js.api import StreamInfo

    from stretto.nats.connection import Link
    from stretto.nats.deployment import Deployment


async def takers(
    link: Link, deployment: Deployment, infos: Mapping[str, StreamInfo]
) -> dict[str, str]:
    """Return the other stream that takes a subject of one which is missing, by the missing one's name."""
    found = {}
    for name, subjects in deployment.streams.items():
        for subject in () if name in infos else subjects:
            with suppress(NotFoundError):
                ask = partial(link.jetstream.find_stream_name_by_subject, subject)
                found[name] = await answered(ask)
    return found


def describe(
    deployment: Deployment, infos: Mapping[str, StreamInfo], taken: Mapping[str, str]
) -> list[str]:
    """Return a line for each stream: its name, its subjects, whose it is, how many keep it.

    `taken` has the `takers`, for whose sake a missing one cannot be made.
    """
    lines = []
    for name, subjects in deployment.streams.items():
        state = "not made yet"
        if name in taken:
            state = f"cannot be made, as the stream {taken[name]} takes such subjects"
        if info := infos.get(name):
            state = f"{whose(info, deployment)}, replicas: {info.config.num_replicas}"
            if missing := missing_subjects(info, deployment):
                state = f"{state}, without {', '.join(missing)}"
            if info.config.no_ack:
                state = f"{state}, acknowledges nothing (no_ack)"
            if info.config.num_replicas != deployment.replicas:
                state = f"{state} (STRETTO_NATS_REPLICAS is {deployment.replicas})"
        lines.append(f"{name} ({', '.join(subjects)}): {state}")
    return lines
