"""Progress of jobs: the caller of a job passes a function that displays it."""

from __future__ import annotations

from typing import Protocol


class Show(Protocol):
    """What a job calls while it runs."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Say how much is done by now; and of how much, where that is known only now."""


def silent(done: int, total: int | None = None) -> None:
    """Show nothing."""
