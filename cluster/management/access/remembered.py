"""Logins that were good, for a minute: what is asked again meanwhile is neither compared nor written down again."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from typing import Final

#: How long a login is known, and how many are.
REMEMBERED_S: Final = 60.0
REMEMBERED_MAX: Final = 1_000


class Remembered:
    """What was shown, as keyed hashes under a key that nobody has beside this process; time is a parameter."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        #: Keyed hash -> until when it counts, the oldest first.
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def _mark(self, what: tuple[str, ...]) -> bytes:
        data = "\0".join(what).encode("utf-8", "surrogateescape")
        return hashlib.blake2b(data, key=self._key, digest_size=32).digest()

    def has(self, *what: str, now: float) -> bool:
        """Tell whether this was good lately.

        It costs nothing, so who guesses would not be slowed down: the network from which a password came is a part.
        """
        return self._until.get(self._mark(what), 0.0) > now

    def add(self, *what: str, now: float) -> None:
        """Know that it is good."""
        mark = self._mark(what)
        self._until.pop(mark, None)
        if len(self._until) >= REMEMBERED_MAX:
            self._until.popitem(last=False)
        self._until[mark] = now + REMEMBERED_S
