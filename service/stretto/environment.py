"""Reads the settings: environment variables, files and flags; all their errors are reported at once.

What a text must be like is in `setting_texts.py`. A flag of the command line overrides the variable.
A name that begins with STRETTO_ and is unknown is an error too: a misspelt setting must not be
silently ignored. The value of STRETTO_X may be in a file instead, whose path is in STRETTO_X_FILE:
that is how secrets are mounted.
"""

from __future__ import annotations

import os
import stat
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from pydantic import TypeAdapter, ValidationError

from stretto.config import FILE_SUFFIX, PREFIX, SETTINGS, Settings
from stretto.http.tokens.settings import TOKEN_WAYS
from stretto.setting import allowed
from stretto.setting_texts import PARSERS
from stretto.start_errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

# A secret, a URL or a certificate has far less. A device has no end, and would fill the memory.
_FILE_CHARACTERS_MAX: Final = 64 * 1024
# What pydantic calls a value that is not within the bounds of its setting.
_OUT_OF_BOUNDS: Final = (
    "greater_than",
    "greater_than_equal",
    "less_than_equal",
    "finite_number",
    "string_pattern_mismatch",
)


def read_settings(**flags: Any) -> Settings:
    """Return the settings; flags that are None leave them to the environment.

    Raises `ConfigurationError` that lists every error.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    files, errors = _read_files(given)
    errors += _errors_of_names(given | files)
    environment, blank = _read_environment()
    errors += blank
    values: dict[str, Any] = {}
    for name, text in (environment | files | given).items():
        try:
            values[name] = PARSERS[name](text) if name in PARSERS else text
        except ValueError as error:
            errors.append(f"{_given_as(name, given, files)}: {error}")
    settings = None
    try:
        settings = TypeAdapter(Settings).validate_python(_by_part(Settings, values))
    except ValidationError as error:
        for each in error.errors():
            name, reason = str(each["loc"][-1]), each["msg"].removeprefix("Value error, ")
            if each["type"] in _OUT_OF_BOUNDS:
                reason = f"must be {allowed(SETTINGS[name])}"
            # What a whole part objects to names the settings itself.
            errors.append(
                f"{_given_as(name, given, files)}: {reason}" if name in SETTINGS else reason
            )
    if errors or settings is None:
        message = "these settings are wrong:\n  " + "\n  ".join(errors)
        raise ConfigurationError(message)
    return settings


def _by_part(part: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as the parts are nested."""
    kinds = get_type_hints(part)
    nested = {}
    for each in fields(part):
        if is_dataclass(kinds[each.name]):
            nested[each.name] = _by_part(kinds[each.name], values)
        elif each.name in values and SETTINGS.get(each.name) is each:
            nested[each.name] = values[each.name]
    return nested


def _given_as(name: str, flags: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """Return what the operator calls a setting: its flag, its file's variable or its variable."""
    if name in flags:
        return f"--{name.replace('_', '-')}"
    return PREFIX + name.upper() + (FILE_SUFFIX if name in files else "")


def _read_environment() -> tuple[dict[str, str], list[str]]:
    """Return the settings that are set in the environment, in either case, and those in error.

    An empty one is not set. Blanks around a value are not part of it: values often come from files, and
    a line end would make another secret, or another audience.
    """
    values = {name.upper(): value for name, value in os.environ.items() if value}
    variables = {name: PREFIX + name.upper() for name in SETTINGS}
    read = {name: values[each].strip() for name, each in variables.items() if each in values}
    blank = [
        f"{variables[name]}: has nothing but blanks" for name, text in read.items() if not text
    ]
    return {name: text for name, text in read.items() if text}, blank


def _read_files(flags: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the settings that are in files, and the errors of those files."""
    values = {name.upper(): value for name, value in os.environ.items() if value}
    files: dict[str, str] = {}
    errors = []
    for name in SETTINGS:
        variable = PREFIX + name.upper()
        path = values.get(variable + FILE_SUFFIX)
        if path is None or name in flags:
            continue
        if variable in values:
            errors.append(f"set only one of {variable}, {variable}{FILE_SUFFIX}")
            continue
        try:
            files[name] = _text_of(path)
        except OSError as error:
            errors.append(f"{variable}{FILE_SUFFIX}: {path} cannot be read ({error.strerror})")
        except UnicodeDecodeError:
            errors.append(f"{variable}{FILE_SUFFIX}: {path} is not UTF-8")
        except ValueError as error:
            errors.append(f"{variable}{FILE_SUFFIX}: {path} {error}")
        else:
            if not files[name]:
                errors.append(f"{variable}{FILE_SUFFIX}: {path} is empty")
    return files, errors


def _text_of(path: str) -> str:
    """Return what a file holds; raise `ValueError` for one that holds no setting."""
    mode = Path(path).stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise ValueError(
            "is a device or a socket: name a file or a pipe that holds the value alone"
        )
    # Some editors begin a file with a byte order mark, and most end it with a line end.
    with Path(path).open(encoding="utf-8-sig") as file:
        text = file.read(_FILE_CHARACTERS_MAX + 1)
    if len(text) > _FILE_CHARACTERS_MAX:
        message = f"has more than {_FILE_CHARACTERS_MAX} characters: name a file of the value alone"
        raise ValueError(message)
    return text.strip()


def environment_of(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment for another one, with other values of some settings.

    Their variables are removed in whatever case they were written, and so are those of their files.
    """
    gone = {*overrides, *(name + FILE_SUFFIX for name in overrides)}
    kept = {name: value for name, value in os.environ.items() if name.upper() not in gone}
    return {**kept, **overrides}


def _errors_of_names(flags: Mapping[str, Any]) -> list[str]:
    """Return the errors in which settings are set, whatever their values are."""
    values = {name.upper(): value for name, value in os.environ.items()}
    values |= {PREFIX + name.upper(): value for name, value in flags.items()}
    known = {PREFIX + name.upper() for name in SETTINGS}
    known |= {name + FILE_SUFFIX for name in known}
    unknown = sorted(name for name in values if name.startswith(PREFIX) and name not in known)
    errors = [f"{name}: unknown setting" for name in unknown]
    errors += _errors_of_spellings()
    ways = [PREFIX + way.upper() for way in TOKEN_WAYS]
    if sum(bool(values.get(way)) for way in ways) > 1:
        errors.append(f"set only one of {', '.join(ways)}")
    # Without a signature, a receiver cannot distinguish our events from forged ones.
    if values.get("STRETTO_WEBHOOK_URL") and not values.get("STRETTO_WEBHOOK_SECRET", "").strip():
        errors.append("STRETTO_WEBHOOK_URL needs STRETTO_WEBHOOK_SECRET")
    return errors


def _errors_of_spellings() -> list[str]:
    """Return an error for each variable that is set in more than one case: only one can count."""
    spellings: dict[str, list[str]] = {}
    for name, value in sorted(os.environ.items()):
        if value and name.upper().startswith(PREFIX):
            spellings.setdefault(name.upper(), []).append(name)
    return [f"set only one of {', '.join(names)}" for names in spellings.values() if len(names) > 1]
