"""How much of what could go on for ever is run: a short share, and all of it with --long."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

_is_long = False


def begin(*, with_all: bool) -> None:
    """Say which it is, before modules of tests are imported."""
    global _is_long
    _is_long = with_all


def is_long() -> bool:
    """Tell whether this run takes all."""
    return _is_long


def short(value: T, *, long: T) -> T:
    """Give a number of rounds, seeds, messages or seconds: a short share, or that of a run with --long."""
    return long if _is_long else value


def some(values: Iterable[T], *, of: int) -> list[T]:
    """Give every so many-th of the values that a test is tried with, from the first on; a run with --long has all."""
    return list(values)[:: 1 if _is_long else of]
