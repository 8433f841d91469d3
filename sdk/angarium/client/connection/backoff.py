"""How long to wait between attempts, so that those who were interrupted together do not come back together.

The waits grow, and each is a random one (https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_S: Final = 0.05
#: For what is not there for a long time: it is seen at most as late again as it was away.
RELUCTANT: Final = 2.0
#: For what is there again at any moment, as after a hand-over: it is seen late by a quarter of the time, at most.
EAGER: Final = 1.25

_random = secrets.SystemRandom()


def waits(longest_s: float, factor: float) -> Iterator[float]:
    """Give wait after wait, in seconds; each between half of a limit and all of it, which grows by the factor."""
    limit = FIRST_S
    while True:
        yield _random.uniform(limit / 2, limit)
        limit = min(limit * factor, longest_s)
