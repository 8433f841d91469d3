"""Totals of the router for the operators, by name; `docs/metrics.md` says what each means."""

from __future__ import annotations


class Counters:
    """What happened since the router started. A session's own counters are added at its end."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        #: Errors told to clients, by code.
        self.errors: dict[int, int] = {}

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a total."""
        self.totals[name] = self.totals.get(name, 0) + amount

    def error(self, code: int, amount: int = 1) -> None:
        """Count an error that a client was told."""
        self.errors[code] = self.errors.get(code, 0) + amount
