"""What the attacks on gateways have in common: where to attack, what was counted, and the ways in turn.

`mqtt_attack` and `http_attack` say what a client of each can do. Whatever the gateway answers is counted; that it
closes connections is expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    import random
    import socket
    from collections import Counter
    from collections.abc import Callable, Sequence

#: How long one answer is waited for.
ANSWER_S: Final = 5.0
#: How long somebody is looked at who may have nothing to say.
LOOK_S: Final = 0.02


class Attack(NamedTuple):
    """Where to attack, and what was counted."""

    url: str
    username: str
    password: str
    rng: random.Random
    #: Plain connections that stay over turns.
    held: list[socket.socket]
    counts: Counter[str]


A = TypeVar("A", bound=Attack)


def attack_once(ways: Sequence[Callable[[A, int], None]], attack: A, turn: int) -> None:
    """Attack in one of the ways after the other."""
    try:
        ways[turn % len(ways)](attack, turn)
    except OSError as error:  # it was closed, or is not read any more
        attack.counts[f"ended: {error.strerror or error}"] += 1
