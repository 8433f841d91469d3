"""The registry of producers: ids, limits, age."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import errors
from cluster.catalog.producers import COUNTER, Producers
from storage.config_store import Counter, Producer

if TYPE_CHECKING:
    from storage.config_store import Entry

ALICE = ("default", "alice", "p")
BOB = ("default", "bob", "p")


@pytest.fixture
def registry() -> Producers:
    return Producers([], 1, limit=3, idle_days=7)


def opened(registry: Producers, key: tuple[str, str, str], today: int = 100) -> int:
    number, entries = registry.open(key, resume=False, today=today)
    registry.take(entries)
    registry.validate()
    return number


def test_a_name_keeps_its_id_and_belongs_to_its_username(registry: Producers) -> None:
    first = opened(registry, ALICE)
    assert opened(registry, ALICE) == first
    assert opened(registry, BOB) != first


def test_an_id_is_never_given_twice(registry: Producers) -> None:
    first = opened(registry, ALICE)
    registry.take(registry.forget(first))
    assert opened(registry, ALICE) > first
    later = Producers([], first + 5, limit=3, idle_days=7)
    assert opened(later, ALICE) == first + 5


def test_the_counter_is_durable_with_the_name(registry: Producers) -> None:
    number, entries = registry.open(ALICE, resume=False, today=100)
    assert entries == [Counter(COUNTER, number + 1), Producer(*ALICE, number, 100)]


def test_opening_the_same_day_again_writes_nothing(registry: Producers) -> None:
    number = opened(registry, ALICE)
    assert registry.open(ALICE, resume=True, today=100) == (number, [])
    assert registry.open(ALICE, resume=True, today=101) == (number, [Producer(*ALICE, number, 101)])


def test_a_forgotten_name_is_told_to_who_resumes(registry: Producers) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        registry.open(ALICE, resume=True, today=100)
    assert caught.value.code == errors.UNKNOWN_FLOW_NAME


def test_the_registry_is_bounded(registry: Producers) -> None:
    for name in ("a", "b", "c"):
        opened(registry, ("v", "u", name))
    with pytest.raises(errors.UnavailableError, match="producers_max") as caught:
        registry.open(("v", "u", "d"), resume=False, today=100)
    assert caught.value.code == errors.TOO_MANY_FLOWS
    assert registry.open(("v", "u", "a"), resume=False, today=100)[1] == []


@pytest.mark.parametrize("name", ["", "x" * 161, "ü" * 81, "a\0", "a\nb"])
def test_a_name_has_to_fit(registry: Producers, name: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match="cannot name a producer"):
        registry.open(("v", "u", name), resume=False, today=100)


def test_what_nobody_opened_for_long_goes_but_what_is_open_stays(registry: Producers) -> None:
    idle, used, open_now = (opened(registry, ("v", "u", name), today=100) for name in ("a", "b", "c"))
    registry.take(registry.open(("v", "u", "b"), resume=True, today=105)[1])
    entries = registry.age(108, {open_now})
    assert registry.ids_of(entries) == [idle]
    assert Producer("v", "u", "c", open_now, 108) in entries
    registry.take(entries)
    registry.validate()
    assert [row["id"] for row in registry.find(None, "*")] == [used, open_now]


def test_a_name_that_was_used_seven_days_ago_is_kept(registry: Producers) -> None:
    opened(registry, ALICE, today=100)
    assert registry.age(107, ()) == []
    assert len(registry.age(108, ())) == 1


def test_producers_go_with_their_username_and_their_message_vpn(registry: Producers) -> None:
    for key in (ALICE, BOB, ("other", "alice", "p")):
        opened(registry, key)
    assert registry.forget_all("default", "alice") == [Producer(*ALICE, None, 0)]
    assert [entry[:2] for entry in registry.forget_all("default")] == [
        ("default", "alice"),
        ("default", "bob"),
    ]


def test_what_is_not_known_is_not_forgotten(registry: Producers) -> None:
    assert registry.forget(99) == []
    entries: list[Entry] = [Producer("v", "u", "never", None, 0)]
    assert registry.ids_of(entries) == []
    registry.take(entries)
    registry.validate()


def test_a_list_is_ordered_and_takes_a_pattern(registry: Producers) -> None:
    for name in ("b1", "a1", "a2"):
        opened(registry, ("v", "u", name))
    assert [row["name"] for row in registry.find("v", "a*")] == ["a1", "a2"]
    assert registry.find("w", "*") == []


def test_brackets_in_a_pattern_stand_for_themselves(registry: Producers) -> None:
    for name in ("a1", "a[1]"):
        opened(registry, ("v", "u", name))
    assert [row["name"] for row in registry.find("v", "a[1]")] == ["a[1]"]
