"""Imports what a package re-exports when somebody asks for it.

A process of a node needs the errors and the wire format of this package and never the client, which takes a third of
its start to import.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def on_demand(
    package: str, places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Give `__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        places: its names that are imported when they are first used, and the module of each.
    """

    def find(name: str) -> Any:
        if name not in places:
            detail = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(detail, name=name, obj=sys.modules[package])
        value = getattr(import_module(places[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return find, names
