"""The garbage collector, for tests of what is gone without it: a process of a node hardly ever collects."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect what others have left, and then nothing until the end."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
