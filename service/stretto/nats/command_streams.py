"""Two JetStream streams, for commands and for dead letters, and one durable consumer.

What is missing is created. A stream that an operator made is left unchanged; it must carry our
mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.errors import NotFoundError

from stretto.nats.deployment import provide_stream
from stretto.nats.requests import answered

if TYPE_CHECKING:
    from stretto.nats.connection import Link
    from stretto.nats.deployment import Deployment

# No client waits for a command that was not taken in this time.
AGE_SECONDS_MAX: Final = 7 * 24 * 3600
DEAD_AGE_SECONDS_MAX: Final = 30 * 24 * 3600
# JetStream recognises a sender's own `Nats-Msg-Id` for this long.
DUPLICATES_SECONDS: Final = 120
# Requests for the next command that may wait on the server, from all replicas together.
WAITING_MAX: Final = 4096
# Commands delivered and not settled, those put off included, of all replicas together. One owner has
# only a share of it (`command_window.py`). The server keeps some 100 bytes of each.
UNSETTLED_MAX: Final = 50_000


async def provide_command_streams(
    link: Link, deployment: Deployment, ack_seconds: float
) -> ConsumerConfig:
    """Create what is missing; return the consumer's own configuration, which may be an operator's.

    An unsettled command is delivered again after `ack_seconds`. Raises an `UnfitStream`.
    """
    stream, consumer = deployment.command_stream, deployment.command_consumer
    await provide_stream(
        link,
        deployment,
        StreamConfig(
            name=stream,
            subjects=[deployment.command_subject],
            retention=RetentionPolicy.WORK_QUEUE,
            max_age=AGE_SECONDS_MAX,
            duplicate_window=DUPLICATES_SECONDS,
        ),
    )
    await provide_dead_stream(link, deployment)
    try:
        info = await answered(lambda: link.jetstream.consumer_info(stream, consumer))
    except NotFoundError:
        config = ConsumerConfig(
            durable_name=consumer,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_seconds,
            max_waiting=WAITING_MAX,
            max_ack_pending=UNSETTLED_MAX,
        )
        info = await answered(lambda: link.jetstream.add_consumer(stream, config))
    found: ConsumerConfig = info.config
    return found


async def provide_dead_stream(link: Link, deployment: Deployment) -> None:
    """Create the stream of dead letters if it is missing; raises an `UnfitStream`."""
    config = StreamConfig(
        name=deployment.dead_stream,
        subjects=[deployment.dead_subject],
        max_age=DEAD_AGE_SECONDS_MAX,
    )
    await provide_stream(link, deployment, config)
