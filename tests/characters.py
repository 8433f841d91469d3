"""Tells Hypothesis which characters UTF-8 has. It would try each of a million, for three seconds in each process."""

from __future__ import annotations

import sys
from functools import cache
from typing import Final

from hypothesis.internal import charmap
from hypothesis.internal.intervalsets import IntervalSet

#: All but surrogates; and those that are not decoded to what they were.
_OF_UTF_8: Final = IntervalSet(((0, 0xD7FF), (0xE000, sys.maxunicode))), IntervalSet(())
_find: Final = charmap.intervals_from_codec


@cache
def _of_codec(name: str) -> tuple[IntervalSet, IntervalSet]:
    return _OF_UTF_8 if name == "utf-8" else _find(name)


def tell() -> None:
    """Have Hypothesis take what is here, in this process."""
    charmap.intervals_from_codec = _of_codec
