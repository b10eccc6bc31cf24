"""The command's tree: it is made without the commands' modules."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

import stretto.commands
from stretto.cli import _COMMANDS, _Command


def function_of(name: str) -> object:
    """Return the function of a module's name; None in a module that is no command."""
    return getattr(import_module(f"stretto.commands.{name}"), name, None)


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: command.name)
def test_the_list_of_commands_says_what_each_says_of_itself(command: _Command) -> None:
    """The summary stands for the function, which is not loaded for the list."""
    text = inspect.getdoc(function_of(command.name))
    assert command.summary == (text or "").partition("\n")[0]


def test_every_command_is_in_the_list() -> None:
    """A module with a function of its own name is a command."""
    (folder,) = stretto.commands.__path__
    modules = {path.stem for path in Path(folder).glob("[a-z]*.py")}
    assert {each.name for each in _COMMANDS} == {name for name in modules if function_of(name)}
