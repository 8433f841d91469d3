"""What all clients of a benchmark do before they are measured."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from benchmarks.clients import process

if TYPE_CHECKING:
    import pytest


class Left:
    """Something that the start of a client leaves behind, in a cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_what_the_start_left_behind_is_collected_before_a_client_is_ready(
    capsys: pytest.CaptureFixture[str],
) -> None:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        left = weakref.ref(Left())
        assert left() is not None
        process.ready()
        assert left() is None
        assert gc.get_count()[1:] == (0, 0)
    finally:
        if was_enabled:
            gc.enable()
    assert capsys.readouterr().out == "READY\n"
