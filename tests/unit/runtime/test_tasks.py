"""Who may make a task: the runner, and what owns the tasks of a connection, a request or a process."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "service" / "stretto"
MAKERS = {"create_task", "ensure_future", "shield", "TaskGroup", "run_coroutine_threadsafe"}
# What runs by itself is an actor. These last as long as what they belong to, which ends them.
OWNED = {
    ("runtime/runner.py", "create_task"): "the actors' own",
    ("runtime/shared.py", "create_task"): "one result for all who wait for it; its end",
    ("creation/flights.py", "create_task"): "a flight that has to follow; the flights' stop",
    ("creation/authorization.py", "create_task"): "a host's say about one request; that request",
    (
        "events/subscriptions.py",
        "create_task",
    ): "a call of on_event, its subscriber's turn; an end within such a call, the subscriber's stop",
    ("embedded/watch.py", "create_task"): "the watch of a server; its own end",
    ("postgres/race.py", "create_task"): "a try of one host; the search's end",
    ("postgres/race.py", "TaskGroup"): "the tries of a search",
    ("postgres/comparing.py", "create_task"): "a try of one host; the comparison's end",
    ("postgres/comparing.py", "TaskGroup"): "the tries of a comparison",
    (
        "postgres/searching.py",
        "create_task",
    ): "the search for a newer primary that was away; its database's close",
    (
        "postgres/driver_connection.py",
        "create_task",
    ): "a question to a server; its connection's end",
    (
        "assembly/host_bus_calls.py",
        "create_task",
    ): "calls of a host's bus; its close, which waits a second at most",
    (
        "assembly/host_bus.py",
        "create_task",
    ): "one call of a host's bus for several owners; its turn",
    (
        "assembly/host_bus_trial.py",
        "create_task",
    ): "calls of a host's bus for an owner each; the trial, or the bus's close",
    (
        "targets/doubted_relay.py",
        "create_task",
    ): "one publishing, and what was refused beside it; the relay's turn and close",
    ("webhook/sender.py", "create_task"): "a request to the webhook's endpoint; the sender's close",
    ("nats/commands.py", "create_task"): "workers of one connection; the end of its turn",
    ("nats/connection.py", "create_task"): "a request of one connection; who waits for it",
    ("nats/requests.py", "create_task"): "tries of one request, messages of a batch; who waits",
    ("http/front/accepting.py", "create_task"): "an accepted connection; the acceptor's stop",
    ("http/event_streams.py", "create_task"): "what a client sends in a session; its session",
    (
        "http/tokens/jwks.py",
        "create_task",
    ): "one download for all who wait for keys; the key set's end",
    ("commands/running.py", "create_task"): "the watch of a command's commits; its connection",
    (
        "postgres/hosts_pool.py",
        "create_task",
    ): "a connection of a host's pool, its release; their time-outs",
    ("runtime/cancelling.py", "create_task"): "a call of a host's code; who waits for it",
    ("postgres/hook.py", "create_task"): "a host's hook in one write; that write",
    ("postgres/stalls.py", "create_task"): "the server is asked to end one write; that write",
    ("server.py", "create_task"): "the wait for the database at the start; that wait",
    ("reports.py", "create_task"): "one gathering of the workers' metrics; the supervisor's end",
    ("supervisor.py", "create_task"): "waits for worker processes; the supervisor's own group",
    ("supervisor.py", "TaskGroup"): "the same",
}
# Each coroutine that it is given becomes a task without a name, which it waits for.
GATHERED = {
    "assembly/host_bus_again.py": "refused events of a few owners of a part",
    "postgres/connections.py": "ends of pools",
    "targets/doubted_relay.py": "parts of a group of refused events",
}


def makers(source: str) -> list[tuple[str, bool, int]]:
    """Return each call that makes a task: its name, whether the task has a name, and its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in MAKERS:
                is_named = any(keyword.arg == "name" for keyword in node.keywords)
                found.append((name, is_named or name == "TaskGroup", node.lineno))
    return found


def gathers_coroutines(source: str) -> bool:
    """Whether `gather` is given anything but tasks that are kept."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    gathers = [node for node in calls if getattr(node.func, "attr", "") == "gather"]
    kept = ("self._tasks", "unanswered")
    return any(ast.unparse(each) not in {f"*{k}" for k in kept} for g in gathers for each in g.args)


def test_nothing_but_the_runner_and_owners_makes_a_task() -> None:
    """A new one is listed here, with its owner and what ends it."""
    made = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        for name, _, _ in makers(path.read_text())
    }
    assert set(OWNED) == made


def test_every_task_has_a_name() -> None:
    """A line about it, in a log or a dump, says which it was."""
    nameless = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, is_named, line in makers(path.read_text())
        if not is_named
    ]
    assert [] == nameless


def test_coroutines_are_gathered_only_where_a_batch_waits_for_all() -> None:
    """Anywhere else they are actors, or tasks with a name."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if gathers_coroutines(path.read_text())
    }
    assert set(GATHERED) == found


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.create_task(run())",
        "loop.create_task(run())",
        "asyncio.ensure_future(run())",
        "asyncio.shield(run())",
        "create_task(run(), context=c)",
    ],
)
def test_a_bare_task_would_be_found(source: str) -> None:
    """The twin: each way of making one."""
    ((_, is_named, _),) = makers(source)
    assert not is_named
    assert gathers_coroutines("asyncio.gather(*map(run, all))")
