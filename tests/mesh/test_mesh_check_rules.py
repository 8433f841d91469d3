"""The checker of the mesh check finds each kind of fault in a history that has it, and none in one that has none."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.mesh.checker import RULES, check, wanted
from tests.mesh.history import (
    DIRECT,
    GUARANTEED,
    PLAIN,
    Got,
    Log,
    Mark,
    Queue,
    Sent,
    Taken,
    key_of,
    read_history,
)
from tests.mesh.ideal import ideal_history
from tests.mesh.traffic import plan
from tests.share import short, some

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.mesh.history import History

TOPOLOGIES = [("full", 3), ("line", 3), ("ring", 4)]
SEEDS = range(short(1, long=3))


def broken_rules(history: History) -> set[str]:
    return {rule for rule, findings in check(history).items() if findings}


def choose_got(
    history: History, rng: random.Random, wanted: Callable[[Got], bool], *, is_far: bool | None = None
) -> tuple[str, int]:
    """Give a subscriber and the place of a message that it got, from its own node or from another."""
    home_of = history.world.publishers
    return rng.choice(
        [
            (one.name, place)
            for one in history.world.subscribers
            for place, got in enumerate(history.got[one.name])
            if wanted(got) and is_far in (None, home_of[got.mark.publisher] != one.node)
        ]
    )


def is_direct(got: Got) -> bool:
    return got.topic.startswith("check/direct/")


def choose_taken(history: History, rng: random.Random, *, is_live: bool) -> tuple[Queue, int]:
    queue = rng.choice([one for one in history.world.queues if one.is_live == is_live])
    return queue, rng.randrange(len(history.taken[queue.key]))


# -- what is broken, and the rule that says so --------------------------------------------------------------------


def a_neighbour_gets_a_message_twice(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, is_direct, is_far=True)
    history.got[name].insert(place, history.got[name][place])
    return "duplicate"


def a_copy_of_a_guaranteed_message_comes_twice(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, lambda got: got.mark.stream == GUARANTEED, is_far=True)
    history.got[name].append(history.got[name][place])
    return "duplicate"


def a_message_comes_back_to_its_own_node(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, is_direct, is_far=False)
    history.got[name].append(history.got[name][place])
    return "loop"


def a_deliver_to_one_message_comes_to_two_clients(history: History, rng: random.Random) -> str:
    _, kind, through = "check", rng.choice(["dto", "both"]), PLAIN
    name, place = choose_got(
        history, rng, lambda got: got.topic.startswith(f"check/{kind}/any/") and got.through == through
    )
    got = history.got[name][place]
    home = history.world.publishers[got.mark.publisher]
    others = [
        one.name
        for one in history.world.subscribers
        if one.name != name and one.name.endswith(("s1", "s2")) and history.world.reaches(home, one.node)
    ]
    put_in_order(history, rng.choice(others), got)
    return "dto_twice"


def two_members_of_a_group_get_a_message(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, lambda got: got.through.startswith("#share/team/"))
    got = history.got[name][place]
    other = rng.choice([f"{name[:-1]}{number}" for number in "123" if number != name[-1]])
    put_in_order(history, other, got)
    return "shared_twice"


def put_in_order(history: History, name: str, got: Got) -> None:
    """Let a subscriber get a message where the publisher's order has it."""
    at = [place for place, one in enumerate(history.got[name]) if key_of(one.mark) < key_of(got.mark)]
    history.got[name].insert(at[-1] + 1 if at else 0, got)
    history.got[name].sort(key=lambda one: one.mark.number)


def somebody_gets_what_it_did_not_ask_for(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, lambda got: is_direct(got) and got.topic.endswith("/2"))
    got = history.got[name][place]
    put_in_order(history, f"{name[:-1]}3", got)
    return "uninvited"


def somebody_gets_what_nobody_sent(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, is_direct)
    got = history.got[name][place]
    history.got[name].append(got._replace(mark=got.mark._replace(number=1_000_000)))
    return "uninvited"


def somebody_gets_what_was_refused(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, lambda got: got.mark.stream == GUARANTEED)
    key = key_of(history.got[name][place].mark)
    history.acknowledged.discard(key)
    history.refused.add(key)
    return "uninvited"


def two_direct_messages_of_a_publisher_change_places(history: History, rng: random.Random) -> str:
    got = history.got[rng.choice([one.name for one in history.world.subscribers if one.name.endswith("s1")])]
    publisher = rng.choice(list(history.world.publishers))
    same = [place for place, one in enumerate(got) if is_direct(one) and one.mark.publisher == publisher]
    if len(same) < 2:
        return two_direct_messages_of_a_publisher_change_places(history, rng)
    first, second = same[0], same[-1]
    got[first], got[second] = got[second], got[first]
    return "order"


def an_acknowledged_message_is_not_in_a_queue(history: History, rng: random.Random) -> str:
    queue, place = choose_taken(history, rng, is_live=rng.random() < 0.5)
    del history.taken[queue.key][place]
    return "lost"


def a_message_is_stored_twice(history: History, rng: random.Random) -> str:
    """It comes from another place, with the flag: a consumer alone could not tell it from a redelivery."""
    queue, place = choose_taken(history, rng, is_live=True)
    taken = history.taken[queue.key]
    taken.append(taken[place]._replace(position=len(taken) + 1, is_redelivered=True))
    return "queue_twice"


def a_message_is_delivered_again_without_the_flag(history: History, rng: random.Random) -> str:
    queue, place = choose_taken(history, rng, is_live=True)
    history.taken[queue.key].append(history.taken[queue.key][place])
    return "queue_twice"


def a_queue_that_is_only_drained_gives_a_message_twice(history: History, rng: random.Random) -> str:
    queue, place = choose_taken(history, rng, is_live=False)
    taken = history.taken[queue.key]
    taken.append(taken[place]._replace(is_redelivered=True))
    return "queue_twice"


def ends_of_a_publisher(history: History, rng: random.Random) -> tuple[list[Taken], int, int]:
    queue = rng.choice([one for one in history.world.queues if one.name in ("live", "final")])
    taken = history.taken[queue.key]
    publisher = rng.choice(taken).mark.publisher
    places = [place for place, one in enumerate(taken) if one.mark.publisher == publisher]
    return taken, places[0], places[-1]


def two_messages_are_stored_in_another_order(history: History, rng: random.Random) -> str:
    """They are delivered in order, and only their positions tell."""
    taken, one, two = ends_of_a_publisher(history, rng)
    places = taken[one].position, taken[two].position
    taken[two], taken[one] = taken[two]._replace(position=places[0]), taken[one]._replace(position=places[1])
    return "queue_order"


def two_messages_are_delivered_in_another_order(history: History, rng: random.Random) -> str:
    taken, one, two = ends_of_a_publisher(history, rng)
    taken[one], taken[two] = taken[two], taken[one]
    return "queue_order"


def a_queue_has_what_it_did_not_ask_for(history: History, rng: random.Random) -> str:
    part = next(one for one in history.world.queues if one.name == "part")
    other = next(one for one in history.world.queues if one.name == "final")
    history.taken[part.key].append(rng.choice(history.taken[other.key])._replace(position=1_000_000))
    return "uninvited"


def somebody_does_not_hear_a_direct_message(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, is_direct)
    del history.got[name][place]
    return "deaf"


def no_candidate_gets_a_deliver_to_one_message(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, lambda got: "/dto/" in got.topic and got.through == PLAIN)
    del history.got[name][place]
    return "deaf"


def no_member_of_a_group_gets_a_message(history: History, rng: random.Random) -> str:
    name, place = choose_got(history, rng, lambda got: got.through.startswith("#share/team/"))
    del history.got[name][place]
    return "deaf"


MUTATIONS = [
    a_neighbour_gets_a_message_twice,
    a_copy_of_a_guaranteed_message_comes_twice,
    a_message_comes_back_to_its_own_node,
    a_deliver_to_one_message_comes_to_two_clients,
    two_members_of_a_group_get_a_message,
    somebody_gets_what_it_did_not_ask_for,
    somebody_gets_what_nobody_sent,
    somebody_gets_what_was_refused,
    two_direct_messages_of_a_publisher_change_places,
    an_acknowledged_message_is_not_in_a_queue,
    a_message_is_stored_twice,
    a_message_is_delivered_again_without_the_flag,
    a_queue_that_is_only_drained_gives_a_message_twice,
    two_messages_are_stored_in_another_order,
    two_messages_are_delivered_in_another_order,
    a_queue_has_what_it_did_not_ask_for,
    somebody_does_not_hear_a_direct_message,
    no_candidate_gets_a_deliver_to_one_message,
    no_member_of_a_group_gets_a_message,
]


@pytest.mark.parametrize(("topology", "count"), TOPOLOGIES)
def test_nothing_is_found_where_nothing_is_wrong(topology: str, count: int) -> None:
    assert broken_rules(ideal_history(topology, count)) == set()


@pytest.mark.parametrize("mutation", some(MUTATIONS, of=3), ids=lambda mutation: mutation.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_one_fault_is_found_by_its_rule(mutation: Callable[[History, random.Random], str], seed: int) -> None:
    topology, count = TOPOLOGIES[seed % len(TOPOLOGIES)]
    history = ideal_history(topology, count, seed=seed)
    rule = mutation(history, random.Random(seed))
    assert rule in broken_rules(history)


@pytest.mark.parametrize("stream", [DIRECT, GUARANTEED])
def test_what_crosses_two_links_is_found_in_a_line(stream: str) -> None:
    history = ideal_history("line", 3)
    if stream == DIRECT:
        got = next(
            one for one in history.got["node-1.s1"] if one.mark.publisher == "node-1.p1" and is_direct(one)
        )
        history.got["node-3.s1"].append(got)
    else:
        taken = next(one for one in history.taken["node-1/live"] if one.mark.publisher == "node-1.p1")
        history.taken["node-3/live"].append(taken._replace(position=1_000_000))
    assert broken_rules(history) == {"loop"}


def test_every_rule_has_a_fault_that_shows_it() -> None:
    shown = {mutation(ideal_history("full", 3), random.Random(1)) for mutation in MUTATIONS}
    assert shown == set(RULES)


def test_a_consumer_may_get_a_message_again_with_the_flag() -> None:
    history = ideal_history("full", 3)
    taken = history.taken["node-1/live"]
    taken.append(taken[3]._replace(is_redelivered=True))
    assert broken_rules(history) == set()


def test_what_was_not_acknowledged_may_be_anywhere_or_nowhere() -> None:
    history = ideal_history("full", 3)
    final = next(queue for queue in history.world.queues if queue.key == "node-2/final")
    publisher, number = min(wanted(history, final))
    key = (publisher, GUARANTEED, number)
    history.acknowledged.discard(key)
    del history.taken[final.key][
        next(n for n, t in enumerate(history.taken[final.key]) if key_of(t.mark) == key)
    ]
    assert broken_rules(history) == set()


def test_a_queue_whose_subscriptions_come_and_go_has_to_have_the_probes() -> None:
    history = ideal_history("full", 3)
    queue = next(queue for queue in history.world.queues if queue.is_loose)
    key = key_of(history.taken[queue.key].pop().mark)
    assert broken_rules(history) == {"lost"}
    history.sent[key] = history.sent[key]._replace(is_probe=False)
    assert broken_rules(history) == set()


def test_copies_for_clients_may_come_again_if_a_router_died_between_them() -> None:
    history = ideal_history("full", 3)
    got = next(one for one in history.got["node-1.s1"] if one.mark.stream == GUARANTEED)
    again = got._replace(connection=1)
    history.got["node-1.s1"].append(again)
    assert broken_rules(history) == set()
    history.got["node-1.s1"][-1] = got
    assert broken_rules(history) >= {"loop"}
    history.repeated.add(key_of(got.mark))
    assert broken_rules(history) == set()


def test_direct_messages_may_never_come_again() -> None:
    history = ideal_history("full", 3)
    got = next(one for one in history.got["node-1.s1"] if is_direct(one))
    history.got["node-1.s1"].append(got._replace(connection=1))
    assert broken_rules(history) >= {"loop"}


def test_what_is_not_a_probe_may_be_lost_if_it_is_direct() -> None:
    history = ideal_history("full", 3)
    got = history.got["node-1.s1"].pop(
        next(n for n, g in enumerate(history.got["node-1.s1"]) if is_direct(g))
    )
    key = key_of(got.mark)
    history.sent[key] = history.sent[key]._replace(is_probe=False)
    assert broken_rules(history) == set()


def test_logs_are_read_as_they_were_written(tmp_path: Path) -> None:
    plan(["node-1", "node-2"], [("node-1", "node-2")]).write(tmp_path)
    log = Log(tmp_path, "node-1.p1")
    mark = Mark("node-1.p1", GUARANTEED, 7, 2)
    log.write("sent", "node-1.p1", GUARANTEED, 7, 2, *Sent("check/copy/x", is_dto=False, is_probe=True))
    log.write("acknowledged", "node-1.p1", [7])
    log.write("refused", "node-1.p1", [8], {"8": 50310})
    log.write("repeated", "node-1.p1", [7, 8])
    log.write("event", "node-1.p1", "disconnected", 60001, "gone")
    log.close()
    log = Log(tmp_path, "node-1/live")
    log.write("got", "node-1.s1", mark, "check/copy/x", PLAIN, 3)
    log.write("taken", "node-1/live", mark, "check/copy/x", 12, True)
    log.close()
    history = read_history(tmp_path)
    assert history.world == plan(["node-1", "node-2"], [("node-1", "node-2")])
    key = key_of(Mark.of(mark.payload()))
    assert history.sent == {key: Sent("check/copy/x", is_dto=False, is_probe=True)}
    assert history.acknowledged == {key}
    assert history.refused == {(*key[:2], 8)}
    assert history.repeated == {key, (*key[:2], 8)}
    assert history.got == {"node-1.s1": [Got(mark, "check/copy/x", PLAIN, 3)]}
    assert history.taken == {"node-1/live": [Taken(mark, "check/copy/x", 12, is_redelivered=True)]}
