"""A host's veto that ends the process of whoever reads it."""

from __future__ import annotations

from typing import NoReturn

from stretto.errors import GroupRejected


class LeavingVeto(GroupRejected):
    """Raises `SystemExit` for what it should say."""

    @property
    def failure(self) -> NoReturn:
        raise SystemExit(3)

    @failure.setter
    def failure(self, _: object) -> None:
        pass
