"""The state machine of a process that carries messages: the pairs of sessions that its configuration asks for.

Pure: time comes in, effects go into an outbox. The shell (`cluster.relay.shell`, or a simulation) carries them out and
passes events of the connections to the pairs. What a kind of process is told, and which pairs that means, is said in
`cluster.link.link` and `cluster.bridge.bridge`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from angarium import errors
from angarium.errors import error_for
from cluster.relay.pair import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.relay.pair import Surroundings

C = TypeVar("C", bound=msgspec.Struct)
P = TypeVar("P", bound=Pair)


class Pairs(ABC, Generic[C, P]):
    """The pairs of one process."""

    ROLE: ClassVar[str]
    CONFIG: ClassVar[type[msgspec.Struct]]
    #: The field of the configuration that may change while pairs go on.
    CHANGES: ClassVar[str]

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._config: C | None = None
        #: By name; exactly those of the configuration.
        self.pairs: dict[str, P] = {}

    @abstractmethod
    def _names(self, config: C) -> Sequence[str]:
        """Give the names of the pairs that there have to be."""

    @abstractmethod
    def _make(self, config: C, name: str, now: float) -> P:
        """Make a pair."""

    @abstractmethod
    def _stats(self, now: float) -> dict[str, Any]:
        """Give what the controller shows of the process."""

    def request(self, operation: str, arguments: Any, now: float) -> Any:
        """Answer what the controller asks: `<role>_config` or `stats`.

        Raises:
            InvalidRequestError: it is neither, or malformed.
        """
        if operation == f"{self.ROLE}_config":
            try:
                config: Any = msgspec.convert(arguments, self.CONFIG)
            except msgspec.ValidationError as error:
                raise errors.invalid(str(error)) from None
            self._configure(config, now)
            return None
        if operation == "stats":
            return self._stats(now)
        raise error_for(errors.UNKNOWN_OPERATION, operation)

    def _configure(self, config: C, now: float) -> None:
        """Take over what changed; pairs that the change does not touch go on."""
        before, self._config = self._config, config
        same = before is not None and self._without_changes(before) == self._without_changes(config)
        names = self._names(config)
        for name, pair in list(self.pairs.items()):
            if not same or name not in names:
                pair.leave(now)
                del self.pairs[name]
        for name in names:
            if name not in self.pairs:
                self.pairs[name] = self._make(config, name, now)

    def _without_changes(self, config: C) -> C:
        return msgspec.structs.replace(config, **{self.CHANGES: []})

    def tick(self, now: float) -> float:
        """Let time pass; gives when the next call is wanted, infinite if never."""
        return min((pair.tick(now) for pair in self.pairs.values()), default=float("inf"))

    def leave(self, now: float) -> None:
        """Say goodbye everywhere."""
        for pair in self.pairs.values():
            pair.leave(now)

    def validate(self) -> None:
        """Check what the comments promise."""
        names = [] if self._config is None else self._names(self._config)
        assert sorted(self.pairs) == sorted(dict.fromkeys(names))
        for pair in self.pairs.values():
            pair.validate()
