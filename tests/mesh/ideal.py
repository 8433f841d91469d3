"""What clients of a mesh would see if nothing ever went wrong: a history for tests of the checker."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from tests.mesh.history import ALWAYS, DIRECT, GUARANTEED, PLAIN, SHARED, Got, History, Mark, Sent, Taken
from tests.mesh.traffic import DIRECT_KINDS, DTO_KINDS, GUARANTEED_KINDS, plan, topic_of
from tests.mesh.trial import pairs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.mesh.history import Subscriber, World

PLACES_PER_QUEUE = 1_000


def ideal_history(topology: str, count: int, *, seed: int = 1, messages: int = 30) -> History:
    """Give the history of a mesh in which every publisher sent so many messages of each stream, all of them probes."""
    nodes = [f"node-{number + 1}" for number in range(count)]
    world = plan(nodes, [(nodes[one], nodes[two]) for one, two in pairs_of(topology, count)])
    history, rng = History(world), random.Random(seed)
    places: Counter[str] = Counter()
    for number in range(messages):
        for publisher, home in world.publishers.items():
            for stream, kinds in ((DIRECT, DIRECT_KINDS), (GUARANTEED, GUARANTEED_KINDS)):
                kind = rng.choice(kinds)
                topic = topic_of(kind, publisher, nodes, rng)
                mark = Mark(publisher, stream, number, 0)
                history.sent[publisher, stream, number] = Sent(topic, kind in DTO_KINDS, is_probe=True)
                for name, through in _receivers(world, home, topic, rng, is_dto=kind in DTO_KINDS):
                    history.got.setdefault(name, []).append(Got(mark, topic, through, 0))
                if stream == GUARANTEED:
                    history.acknowledged.add((publisher, stream, number))
                    _store(history, home, mark, topic, places)
    return history


def _receivers(
    world: World, home: str, topic: str, rng: random.Random, *, is_dto: bool
) -> Iterator[tuple[str, str]]:
    """Give each subscriber that gets a message, and through what."""
    candidates: list[Subscriber] = []
    groups: dict[tuple[str, str], list[str]] = {}
    for one in world.subscribers:
        matching = [w for w in one.wishes if w.takes(topic)] if world.reaches(home, one.node) else []
        for wish in matching:
            if wish.how == SHARED:
                groups.setdefault((one.node, wish.filter), []).append(one.name)
        hows = {wish.how for wish in matching}
        if ALWAYS in hows:
            yield one.name, ALWAYS
        elif PLAIN in hows and is_dto:
            candidates.append(one)
        elif PLAIN in hows:
            yield one.name, PLAIN
    if candidates:
        local = [one for one in candidates if one.node == home]
        yield rng.choice(local or candidates).name, PLAIN
    for (_, share), members in groups.items():
        yield rng.choice(members), share


def _store(history: History, home: str, mark: Mark, topic: str, places: Counter[str]) -> None:
    for queue in history.world.queues:
        if queue.takes(topic) and history.world.reaches(home, queue.node):
            places[queue.key] += 1
            taken = Taken(mark, topic, places[queue.key], is_redelivered=False)
            history.taken.setdefault(queue.key, []).append(taken)
