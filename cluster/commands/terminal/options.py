"""What options of many commands have in common: types of their values, defaults that are shown, families."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    _Function = Callable[..., Any]
    _Decorator = Callable[[_Function], _Function]

AT_LEAST_0: Final = click.IntRange(min=0)
AT_LEAST_1: Final = click.IntRange(min=1)
#: Seconds, or a rate.
ABOVE_0: Final = click.FloatRange(min=0, min_open=True)
#: A file that is there.
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def setting(*names: str, default: Any, **more: Any) -> _Decorator:
    """Give an option whose default `--help` shows; the arguments are those of `click.option`."""
    return click.option(*names, default=default, show_default=True, **more)


def options(*family: _Decorator) -> _Decorator:
    """Give one decorator that adds a family of options; `--help` lists them in the order in which they are written."""

    def add(function: _Function) -> _Function:
        for option in reversed(family):
            function = option(function)
        return function

    return add
