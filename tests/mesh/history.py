"""What a run of the mesh check was, in the words of its clients: who there was, and what each sent and got.

Every client writes a log of its own, one JSON array a line, as things happen to it. `read_history` puts the logs
together; `tests.mesh.checker` judges them. A message carries its mark as its payload, so that whoever gets it knows
which one it is: publisher, stream, number, and under which connection of the publisher it was sent.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from angarium.topic import matches, parse_filter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: The two streams of a publisher: its messages are numbered in each, and each has an order of its own.
DIRECT = "direct"
GUARANTEED = "guaranteed"
#: How a subscription gets messages.
PLAIN, ALWAYS, SHARED = "plain", "always", "shared"
_WORLD = "world.json"


#: A run has a few hundred topics, and some filters.
@lru_cache(maxsize=100_000)
def _matches(filter_text: str, topic: str) -> bool:
    return matches(parse_filter(filter_text).pattern, topic)


class Mark(NamedTuple):
    """Which message it is."""

    publisher: str
    stream: str
    number: int
    #: Rises with each connection of the publisher; order is promised within one.
    epoch: int

    def payload(self, size: int = 0) -> bytes:
        """Give it as bytes, of this size at least."""
        return f"{self.publisher} {self.stream} {self.number} {self.epoch} ".encode().ljust(size, b".")

    @classmethod
    def of(cls, payload: bytes) -> Self:
        """Read it.

        Raises:
            ValueError: it is none.
        """
        publisher, stream, number, epoch, _ = payload.decode().split(" ")
        return cls(publisher, stream, int(number), int(epoch))


class Wish(NamedTuple):
    """A subscription of a client."""

    filter: str
    how: str

    def takes(self, topic: str) -> bool:
        """Tell whether it matches."""
        return _matches(self.filter, topic)


class Subscriber(NamedTuple):
    """A client that subscribes."""

    name: str
    node: str
    wishes: tuple[Wish, ...]


class Queue(NamedTuple):
    """A queue of a node.

    A live one is consumed all the time, so acknowledgements of it may be lost. The subscriptions of a loose one come
    and go, and are all there while probes are sent.
    """

    node: str
    name: str
    filters: tuple[str, ...]
    is_live: bool = False
    is_loose: bool = False

    @property
    def key(self) -> str:
        """Name it in the whole mesh."""
        return f"{self.node}/{self.name}"

    def takes(self, topic: str) -> bool:
        """Tell whether it attracts a topic; `!filter` keeps out what it matches."""
        wanted = any(_matches(one, topic) for one in self.filters if not one.startswith("!"))
        return wanted and not any(_matches(one[1:], topic) for one in self.filters if one.startswith("!"))


@dataclass(frozen=True)
class World:
    """Who there is."""

    #: Publisher -> node.
    publishers: dict[str, str]
    subscribers: tuple[Subscriber, ...]
    queues: tuple[Queue, ...]
    #: Pairs of nodes that have a link, each once.
    links: tuple[tuple[str, str], ...]

    def reaches(self, one: str, other: str) -> bool:
        """Tell whether what is published on one node may come to the other: a message crosses one link at most."""
        return one == other or (one, other) in self.links or (other, one) in self.links

    def write(self, folder: Path) -> None:
        """Keep it beside the logs."""
        plain = {
            "publishers": self.publishers,
            "subscribers": self.subscribers,
            "queues": self.queues,
            "links": self.links,
        }
        (folder / _WORLD).write_text(json.dumps(plain, indent=1), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote."""
        plain = json.loads((folder / _WORLD).read_text(encoding="utf-8"))
        return cls(
            plain["publishers"],
            tuple(
                Subscriber(name, node, tuple(Wish(*one) for one in w))
                for name, node, w in plain["subscribers"]
            ),
            tuple(Queue(node, name, tuple(f), *rest) for node, name, f, *rest in plain["queues"]),
            tuple((one, other) for one, other in plain["links"]),
        )


class Sent(NamedTuple):
    """A message that a publisher gave to its client."""

    topic: str
    is_dto: bool
    #: Sent while everything was in order, so that everybody has to get it.
    is_probe: bool


class Got(NamedTuple):
    """A message that a subscriber got, in the order of getting."""

    mark: Mark
    topic: str
    #: The kind of subscription that it came through, or the filter of the share group.
    through: str
    #: Rises with each connection of the subscriber.
    connection: int


class Taken(NamedTuple):
    """A message that a consumer of a queue got."""

    mark: Mark
    topic: str
    position: int
    is_redelivered: bool


Key = tuple[str, str, int]


@dataclass
class History:
    """Everything that happened to clients."""

    world: World
    #: (publisher, stream, number) -> what was sent.
    sent: dict[Key, Sent] = field(default_factory=dict)
    #: Guaranteed messages that were acknowledged, and refused.
    acknowledged: set[Key] = field(default_factory=set)
    refused: set[Key] = field(default_factory=set)
    #: Guaranteed messages that were not settled when the connection of their publisher broke: it sends them again.
    repeated: set[Key] = field(default_factory=set)
    #: Subscriber -> what it got.
    got: dict[str, list[Got]] = field(default_factory=dict)
    #: Key of the queue -> what its consumers got.
    taken: dict[str, list[Taken]] = field(default_factory=dict)


def key_of(mark: Mark) -> Key:
    """Give what names a message, whatever connection it was sent under."""
    return mark[:3]


class Log:
    """The log of one client."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = (folder / f"{name.replace('/', '.')}.log").open("a", encoding="utf-8")

    def write(self, *what: Any) -> None:
        """Add a line; the time comes last."""
        self._file.write(json.dumps([*what, round(time.monotonic(), 4)]) + "\n")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def read_history(folder: Path, names: Sequence[str] = ("*",)) -> History:
    """Put the logs of a folder together, or those of some clients."""
    history = History(World.read(folder))
    for path in sorted(path for name in names for path in folder.glob(f"{name}.log")):
        with path.open(encoding="utf-8") as file:
            for line in file:
                _add(history, json.loads(line))
    return history


def _add(history: History, what: list[Any]) -> None:
    kind, who = what[0], what[1]
    if kind == "sent":
        _, _, stream, number, _, *rest, _ = what
        history.sent[who, stream, number] = Sent(*rest)
    elif kind == "got":
        history.got.setdefault(who, []).append(Got(Mark(*what[2]), *what[3:6]))
    elif kind == "taken":
        history.taken.setdefault(who, []).append(Taken(Mark(*what[2]), *what[3:6]))
    elif kind in ("acknowledged", "refused", "repeated"):
        getattr(history, kind).update((who, GUARANTEED, number) for number in what[2])
