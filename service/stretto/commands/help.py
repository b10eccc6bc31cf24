"""What the command says of itself: settings, examples and exit codes, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stretto.config import FILE_SUFFIX, PREFIX, SETTINGS
from stretto.setting import allowed
from stretto.start_errors import EXIT_UNFIT, EXIT_UNREACHED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXIT_DONE: Final = 0
EXIT_NOT_FOUND: Final = 1
EXIT_VIOLATION: Final = 1
EXIT_USAGE: Final = EXIT_UNFIT
EXIT_DATABASE: Final = EXIT_UNREACHED
EXIT_EMBEDDED: Final = 4
EXIT_PORT: Final = 5
EXIT_WORKERS: Final = 6
# EX_IOERR of sysexits.h.
EXIT_OUTPUT: Final = 74
EXIT_INTERRUPTED: Final = 130
# What `--help` says of them.
EXIT_CODES: Final = {
    EXIT_DONE: "done",
    EXIT_NOT_FOUND: "not found, or a guarantee does not hold",
    EXIT_USAGE: "wrong usage or settings, or a schema or rights that do not fit",
    EXIT_DATABASE: "the database or NATS does not answer, or refuses us",
    EXIT_EMBEDDED: "the embedded server cannot run",
    EXIT_PORT: "the address is in use, or may not be listened on",
    EXIT_WORKERS: "no worker process stays alive",
    EXIT_OUTPUT: "the output cannot be written",
    EXIT_INTERRUPTED: "interrupted",
}


def epilog(*examples: str, codes: Iterable[int] = EXIT_CODES, more: str = "") -> str:
    r"""Return a help text's last part; after `\b`, click leaves the lines as they are."""
    lines = ["\b", "Example:", *(f"  {example}" for example in examples), "", "\b", "Exit codes:"]
    lines += [f"  {code:<3}  {EXIT_CODES[code]}" for code in sorted(codes)]
    return "\n".join([*lines, f"  {more}"] if more else lines)


def _settings_help() -> Iterator[str]:
    yield "\b"
    yield "Settings, as environment variables:"
    for name, each in SETTINGS.items():
        default: Any = each.default
        limits = [] if default in ("", (), frozenset()) else [str(default)]
        limits += filter(None, [allowed(each)])
        shown = f" ({'; '.join(limits)})" if limits else ""
        yield f"  {PREFIX + name.upper():29} {each.metadata['description']}{shown}"
    yield f"  {PREFIX}...{FILE_SUFFIX:18} a file that holds the value of any of them"


SETTINGS_HELP: Final = "\n".join(_settings_help())
